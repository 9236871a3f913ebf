"""How long the phases of a start and of an adjustment take, in seconds of virtual time.

The phases are the log's own: decision → checkpoint and exit of the old generation (`checkpoint_s`, `stop_s`), release (the
core's affair) → containers started (`start_s`) → first work (`boot_s`, `resume_s`).
"""

from __future__ import annotations

import msgspec


class Timings(msgspec.Struct, frozen=True):
    """Defaults are what the NumPy sample app takes on Docker on one machine, rounded (`dorm bench calibration`; the figures
    are in docs/calibration.md).  Programs that load larger models or data take longer: what they took is fitted from a log
    (`fitting_timings`)."""

    checkpoint_s: float = 0.2
    """From the decision until the state is saved; the app does no work meanwhile."""
    stop_s: float = 0.25
    """From then until the last container of the old generation has exited."""
    start_s: float = 0.45
    """From the release until the containers have started."""
    boot_s: float = 0.7
    """From there to the first work, where nothing is resumed."""
    resume_s: float = 0.85
    """From there to the first work, where a checkpoint is read."""
    checkpoint_every_s: float = 0.0
    """How often the app saves by itself while it works: what a crash costs at most.  0 for never."""
    can_checkpoint: bool = True
    """Whether it saves when it is asked to stop.  If not, an adjustment costs all work since the last save by itself."""

    @property
    def pause_s(self) -> float:
        """How long one adjustment keeps the app from working, where room is free at once."""
        return self.checkpoint_s + self.stop_s + self.start_s + self.resume_s


FREE = Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=0.0, resume_s=0.0)
"""Nothing costs anything: what task-level sharing pays instead is in its tasks (`scenario.Tasks`)."""
LIVE = Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=1.0, resume_s=1.0)
"""Live resizing: members join and leave a running partition and agree on it at the next iteration (Chicle, arXiv 1909.04885);
what starts anew is started beside the old, so only that agreement is a pause."""
