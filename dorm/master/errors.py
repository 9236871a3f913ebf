"""What a master raises.

MasterError
├── Deposed         another master was elected after this one
└── RoundsRefused   the log refuses its rounds
"""

from __future__ import annotations

from events.errors import DormError


class MasterError(DormError):
    """Base class of the errors that a master raises."""

    code = "master.failed"


class Deposed(MasterError):
    """Another master was elected after this one."""

    code = "master.deposed"


class RoundsRefused(MasterError):
    """The log refuses this master's rounds."""

    code = "master.rounds_refused"
