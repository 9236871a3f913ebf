"""Everything that ends a worker early, each with its exit code and one clear line.

AppFailure
├── BadSetting           2   an option, the environment or the data set is unusable
├── PortTaken           98   another process listens on this worker's port (98 is EADDRINUSE on Linux)
├── PeerLost             1   another worker died, gave up, went silent or never joined
├── CheckpointUnusable   1   no checkpoint to resume from, or not one of this training
└── Diverged             1   the loss is no longer a number
"""

from __future__ import annotations


class AppFailure(Exception):
    """Root of the errors that end a worker; its text is the line that the user reads, its `code` is stable, for programs."""

    code = "app.failed"
    exit_code = 1


class BadSetting(AppFailure):
    """An option or the environment is invalid; a retry changes nothing."""

    code = "app.setting.malformed"
    exit_code = 2


class PortTaken(AppFailure):
    """The port that DORM_PEERS assigns to this rank is in use; another generation with fresh ports can work."""

    code = "port.in_use"
    exit_code = 98


class PeerLost(AppFailure):
    """The ring is broken, so no further step is possible in this generation."""

    code = "app.peer_lost"


class CheckpointUnusable(AppFailure):
    """Resuming is impossible, and silently starting over would throw work away."""

    code = "app.checkpoint.unusable"


class Diverged(AppFailure):
    """Training broke down numerically."""

    code = "app.diverged"
