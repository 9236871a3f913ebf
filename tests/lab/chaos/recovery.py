"""How long a cluster took to get over each fault: from the log and from what the training processes noted themselves.

    control     from the fault to the first answer of a master to something that was asked after it
    training    from the fault to the last step of the pause that it caused, over all apps that trained when it came; a pause
                ends with the next step, with a decision that lets the app wait, or with the app
    takeover    from a fault that hit the leading master to the next master's election

Recovery is the later of the first two.  An app that had been told to stop for an adjustment was not stopped by a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from events.quantities import SECOND
from tests.lab.chaos.log import first_after
from tests.lab.chaos.record import stalls, steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.lab.chaos.faults import Injected
    from tests.lab.chaos.log import Told
    from tests.lab.chaos.record import Stay
    from tests.lab.chaos.work import Probe

_LONGEST_STEP = 2 * SECOND
"""What is no pause yet: a step by one worker takes a quarter of a second if the machine has time."""
_AFTERMATH = 20 * SECOND
_TOLD_BEFORE = 3 * SECOND
"""From a decision to stop an app to the last step of it, at most."""


class Recovery(NamedTuple):
    """Of one fault, in seconds; None if it never came."""

    kind: str
    control_s: float | None
    training_s: float

    @property
    def seconds(self) -> float | None:
        """All together."""
        return None if self.control_s is None else max(self.control_s, self.training_s)


class Pause(NamedTuple):
    """A time in which an app did not train, though nobody had told it to stop."""

    app: str
    begin: int
    end: int


def pauses(told: Told, of_apps: Mapping[str, Sequence[Stay]]) -> list[Pause]:
    """Of all apps, by when they began."""
    found = []
    for app in sorted(of_apps):
        moments = steps(of_apps[app])
        ended = told.state.apps[app].ended_at if app in told.state.apps else 0
        if moments and ended > moments[-1]:
            moments.append(ended)
        for stall in stalls(moments, _LONGEST_STEP):
            stopped = first_after(told.resized.get(app, []), stall.begin - _TOLD_BEFORE)
            if stopped is not None and stopped <= stall.begin:
                continue
            settled = first_after(told.waits.get(app, []), stall.begin)
            found.append(Pause(app, stall.begin, min(stall.end, settled or stall.end)))
    return sorted(found, key=lambda pause: (pause.begin, pause.app))


def recoveries(
    faults: Sequence[Injected], told: Told, of_apps: Mapping[str, Sequence[Stay]], probes: Sequence[Probe]
) -> list[Recovery]:
    """One for each fault.  A pause counts for the last fault that came before it began, and not long after that was over."""
    found = []
    paused = pauses(told, of_apps)
    ordered = sorted(faults, key=lambda fault: fault.at)
    for number, fault in enumerate(ordered):
        until = fault.ended_at + _AFTERMATH
        if number + 1 < len(ordered):
            until = min(until, ordered[number + 1].at)
        own = [p for p in paused if _begins_in(p, fault.at, until)]
        training = max((pause.end - fault.at for pause in own), default=0)
        found.append(Recovery(fault.kind, _control(fault.at, told, probes), training / SECOND))
    return found


def _begins_in(pause: Pause, at: int, until: int) -> bool:
    """Its last step was before the fault, by less than a step takes, or after it."""
    if pause.end <= at:
        return False
    begin = pause.begin + _LONGEST_STEP // 2
    return at <= begin < until


def _control(at: int, told: Told, probes: Sequence[Probe]) -> float | None:
    answers = [told.answered[probe.id] for probe in probes if probe.at >= at and probe.id in told.answered]
    return (min(answers) - at) / SECOND if answers else None


def takeovers(faults: Sequence[Injected], told: Told) -> list[float]:
    """Seconds, of the faults that hit a leading master and were followed by an election before the next of them."""
    hits = sorted(fault.at for fault in faults if fault.kind in ("leader_killed", "leader_paused"))
    found = []
    for number, at in enumerate(hits):
        elected = first_after(told.elected, at)
        if elected is not None and (number + 1 == len(hits) or elected < hits[number + 1]):
            found.append((elected - at) / SECOND)
    return found
