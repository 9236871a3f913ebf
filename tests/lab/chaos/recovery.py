"""How long a cluster took to recover from each fault, by the log and the training processes' records.

    control     from the fault to the first answer of a master to a request after it
    training    from the fault to the last step of the pause that it caused, over all apps that trained when it came; a pause
                ends with the next step, with a decision that lets the app wait, or with the app
    takeover    from a fault that hit the leading master to the next master's election

Recovery is the later of the first two.  A stop for an adjustment does not count as an effect of a fault.
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
"""Shorter gaps are not pauses: a step by one worker takes a quarter of a second on an idle machine."""
_AFTERMATH = 20 * SECOND
_TOLD_BEFORE = 3 * SECOND
"""The longest time from a decision to stop an app to its last step."""


class Recovery(NamedTuple):
    """Recovery from one fault, in seconds; None if it never recovered."""

    kind: str
    control_s: float | None
    training_s: float

    @property
    def seconds(self) -> float | None:
        """All together."""
        return None if self.control_s is None else max(self.control_s, self.training_s)


class Pause(NamedTuple):
    """An interval in which an app did not train although nothing had asked it to stop."""

    app: str
    begin: int
    end: int


def pauses(told: Told, of_apps: Mapping[str, Sequence[Stay]]) -> list[Pause]:
    """Return the pauses of all apps, by start time."""
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
    """Return the recovery from each fault.  A pause counts for the last fault before it, unless that was over long before."""
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
    """Return whether its last step was after the fault, or before it by less than the duration of a step."""
    if pause.end <= at:
        return False
    begin = pause.begin + _LONGEST_STEP // 2
    return at <= begin < until


def _control(at: int, told: Told, probes: Sequence[Probe]) -> float | None:
    answers = [told.answered[probe.id] for probe in probes if probe.at >= at and probe.id in told.answered]
    return (min(answers) - at) / SECOND if answers else None


def takeovers(faults: Sequence[Injected], told: Told) -> list[float]:
    """Return the seconds from each fault that hit a leading master to the next election, if that came before the next such
    fault."""
    hits = sorted(fault.at for fault in faults if fault.kind in ("leader_killed", "leader_paused"))
    found = []
    for number, at in enumerate(hits):
        elected = first_after(told.elected, at)
        if elected is not None and (number + 1 == len(hits) or elected < hits[number + 1]):
            found.append((elected - at) / SECOND)
    return found
