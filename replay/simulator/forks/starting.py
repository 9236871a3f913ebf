"""Forecasts when a waiting app will start: a few short simulations from the present, and their assumptions.

The start depends on the remaining work of other apps, which is mostly unknown.  So the present is continued with the
likely amount of it, and with the least and the most that seem possible (`fitting`): a range instead of a number.  The
forecast assumes that no app is submitted meanwhile and no node fails.

The answer is part of `dorm explain`, so computing is bounded: by the number of the policy's decisions, which take most of the
time and more on larger clusters.  The bound is a count and not a clock, so the same state gets the same answer.  If it does
not reach far enough, the answer states until when the app surely waits.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dorm.core.query.assumed import Assumed
from events.kinds import Round
from events.quantities import SECOND
from replay.simulator.forks import fork as forks
from replay.simulator.forks.fitting import Bound, Fitting
from replay.simulator.forks.history import History
from replay.words import span

if TYPE_CHECKING:
    from dorm.core.folded import Folded
    from dorm.core.state import State
    from events.kinds import Event
    from events.log.records import Record
    from events.spec import CheckedSpec
    from replay.simulator.forks.fork import Fork

BOUNDS: tuple[Bound, ...] = ("likely", "least", "most")
HORIZON_S = 7 * 86_400.0
BUDGET_S = 1.5
"""Seconds of one core that all runs together may take, by the costs below."""
_SLOW = {"dorm": (0.04, 5e-5), "dorm-exact": (0.1, 1e-3)}
_QUICK = (0.004, 2e-6)
"""Seconds of one core per decision: fixed, and for each app times node; measured on small clusters."""
_LEAST = 6
"""Number of decisions below which a run is not worth starting."""
_MOST_REPORTS = 2000
"""Progress reports of a run."""
_MOST_NAMES = 5


class Try(msgspec.Struct, frozen=True):
    """One simulation."""

    work: Bound
    """The remaining work of others, if unknown."""
    starts_in_s: float | None
    """None if it did not start within the time that was played."""
    played_s: float
    """Time to which the run was played."""
    over: bool
    """Whether no other app had containers any more at the end."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """When the app will start, in seconds from now; None for unknown."""

    earliest_s: float | None
    latest_s: float | None
    """Also None if it did not start in all tries, or if everything in its way is a guess: such apps may run for any length of
    time."""
    not_before_s: float | None
    """Time to which all of them were played, if it started in none."""
    tries: list[Try]
    assumptions: list[str]
    text: str
    """The same in a sentence for people."""


class Outlook:
    """Follows a fold, as `replay.story.story.follow` requires, for the inputs of a forecast."""

    def __init__(self) -> None:
        self.history: History | None = None

    def begin(self, state: State) -> None:
        self.history = History(state)

    def see(self, state: State, record: Record, event: Event, folded: Folded) -> None:
        if self.history is None:
            self.begin(state)
        assert self.history is not None
        self.history.see(state, record, event, folded)


class _Enough(Exception):
    """The run has shown its result."""


def forecast(outlook: Outlook, state: State, app: str, now: int) -> Start | None:
    """Return when an app that waits will start; None for other apps, and while the policy fails: nothing starts then, and no
    simulation says for how long."""
    known = state.apps.get(app)
    if known is None or known.ended or known.current is not None or outlook.history is None:
        return None
    if not isinstance(state.policy_failure, msgspec.UnsetType):
        return None
    return starting(outlook.history, state, app, now)


def starting_new(history: History, state: State, spec: CheckedSpec, now: int) -> Start:
    """Return when an app with this spec will start that is submitted now, at `now` (UTC ns).  Raises PlanError if it would be
    refused."""
    return starting(history, state, forks.id_of_new(spec), now, Assumed(specs=(spec,)))


def starting(history: History, state: State, app: str, now: int, changes: Assumed | None = None) -> Start:
    """Return when `app`, the id of a live app without containers of `state` or of `changes`, will start; `now` is UTC ns."""
    if affordable(state) < _LEAST:
        return _start([], ["the cluster is too large to be simulated for an explanation"], _TOO_LARGE)
    make = partial(
        forks.make,
        history,
        state,
        now=now,
        until_s=HORIZON_S,
        changes=changes,
        fitting=Fitting(history),
        reports=_MOST_REPORTS,
    )
    base = make()
    unknown = [name for name, fitted in base.fitted.items() if name != app and fitted.least < fitted.most]
    bounds = BOUNDS if unknown else BOUNDS[:1]
    decisions = max(1, affordable(state) // len(bounds))
    tries = [_try(make(work=work), app, work, decisions) for work in bounds]
    assumptions = ["no other app is submitted", "no node fails", *_basis(base, unknown)]
    holders = [other.id for other in state.live_apps() if other.id != app and other.current is not None]
    # The least work of a guess is a valid bound; the most is not.
    bounded = not holders or not all(base.fitted[holder].work_from == "guess" for holder in holders)
    return _start(tries, assumptions, "", bounded=bounded)


def _basis(fork: Fork, unknown: list[str]) -> list[str]:
    """Describe the assumed work of these apps."""
    models = [fork.fitted[app] for app in unknown]
    sentences = []
    guessed = [model.model.spec.name for model in models if model.work_from == "guess"]
    if guessed:
        done = "it has" if len(guessed) == 1 else "each has"
        sentences.append(
            f"the remaining work of {_named(guessed)} is between half and twice what {done} done (a guess)"
        )
    alike = [model.model.spec.name for model in models if model.work_from != "guess"]
    if alike:
        sentences.append(f"{_named(alike)} {_have(alike)} as much work as similar apps")
    return sentences


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def affordable(state: State) -> int:
    """Return how many decisions all runs together may make."""
    fixed_s, each_s = _SLOW.get(state.settings.policy, _QUICK)
    return int(BUDGET_S / (fixed_s + each_s * len(state.names) * len(state.nodes)))


_TOO_LARGE = "Its start is not simulated here, as the cluster is large; `dorm whatif` does that."


def _try(fork: Fork, app: str, work: Bound, decisions: int) -> Try:
    begin = fork.state.time
    started_at: int | None = None
    last = begin
    left = decisions

    simulation = forks.simulation_of(fork)
    is_new = app not in fork.state.apps

    def watch(state: State, record: Record, event: Event, folded: Folded) -> None:
        nonlocal started_at, last, left, is_new
        last = max(last, record.time)
        waiting = simulation.state.apps.get(app)
        if waiting is None and is_new:
            return  # Its submission is still to be answered.
        is_new = False
        if waiting is None or waiting.ended:
            raise _Enough
        if waiting.current is not None and waiting.current.started_at:
            started_at = record.time
            raise _Enough
        if isinstance(event, Round) and event.allocated:
            left -= 1
            if left <= 0:
                raise _Enough

    simulation.observe(watch)
    over = False
    with contextlib.suppress(_Enough):
        over = all(other.id == app or other.current is None for other in simulation.run().live_apps())
    starts_in_s = None if started_at is None else (started_at - begin) / SECOND
    return Try(work, starts_in_s, (last - begin) / SECOND, over)


def _start(tries: list[Try], assumptions: list[str], text: str, *, bounded: bool = True) -> Start:
    starts = [attempt.starts_in_s for attempt in tries if attempt.starts_in_s is not None]
    earliest = min(starts, default=None)
    latest = max(starts) if starts and len(starts) == len(tries) and bounded else None
    played = min((attempt.played_s for attempt in tries), default=None) if not starts else None
    if not text:
        when = _when(earliest, tries[0].starts_in_s, latest, played, over=all(attempt.over for attempt in tries))
        text = f"{when}, if {_and(assumptions)}."
    return Start(
        earliest_s=earliest, latest_s=latest, not_before_s=played, tries=tries, assumptions=assumptions, text=text
    )


def _when(
    earliest: float | None, likely: float | None, latest: float | None, played: float | None, *, over: bool
) -> str:
    if earliest is None:
        if over:
            return "When it will start is unknown: in a simulation it still waits when all others have ended"
        reached = f" within {span(played)}" if played else ""
        return f"When it will start is unknown: in a simulation it does not start{reached} (`dorm whatif` simulates further)"
    low, about = span(earliest), span(earliest if likely is None else likely)
    if latest is None:
        if likely is None or low == about:
            return f"It will start in about {low} at the earliest"
        return f"It will start in about {about} ({low} at the earliest)"
    high = span(latest)
    if low == high:
        return f"It will start in about {low}"
    unit = about.split(" ")[1]
    if all(text.endswith(f" {unit}") for text in (low, high)):
        low, high = low.split(" ")[0], high.split(" ")[0]
    return f"It will start in about {about} ({low} to {high})"


def _have(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
