"""How long the phases of a start and of an adjustment take, in seconds of virtual time.

The phases are the log's own: decision → checkpoint and exit of the old generation (`checkpoint_s`, `stop_s`), release (by the
core) → containers started (`start_s`) → first work (`boot_s`, `resume_s`).
"""

from __future__ import annotations

import msgspec


class Timings(msgspec.Struct, frozen=True):
    """Durations of an app's phases.  Defaults are those of the NumPy sample app on Docker on one machine, rounded
    (`dorm bench calibration`; the figures are in docs/calibration.md).  Programs that load larger models or data take longer:
    their timings are fitted from a log (`fitting_timings`)."""

    checkpoint_s: float = 0.2
    """Time from the decision until the state is saved; the app does no work meanwhile."""
    stop_s: float = 0.25
    """Time from then until the last container of the old generation has exited."""
    start_s: float = 0.45
    """Time from the release until the containers have started."""
    boot_s: float = 0.7
    """Time from there to the first work, if nothing is resumed."""
    resume_s: float = 0.85
    """Time from there to the first work, if a checkpoint is read."""
    checkpoint_every_s: float = 0.0
    """Seconds between checkpoints that the app saves by itself while it works, which bound the cost of a crash; 0 for none."""
    can_checkpoint: bool = True
    """Whether it saves when asked to stop.  If not, an adjustment costs all work since it last saved by itself."""

    @property
    def pause_s(self) -> float:
        """How long one adjustment keeps the app from working, if room is free at once."""
        return self.checkpoint_s + self.stop_s + self.start_s + self.resume_s


FREE = Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=0.0, resume_s=0.0)
"""Adjustments cost nothing: with task-level sharing the tasks pay instead (`scenario.Tasks`)."""
LIVE = Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=1.0, resume_s=0.02)
"""Live resizing: members join and leave a running partition and agree on it at the next iteration (Chicle, arXiv 1909.04885).
New containers start beside the old ones, so only that agreement is a pause.  Both times are rounded up from those of NumPy
workers (`dorm bench elastic`, docs/figures.md): a newcomer starts, connects and warms up in 0.4 s on an idle machine and in
about a second on a loaded one; most pauses are below 5 ms, and 99 in a hundred below 25."""
