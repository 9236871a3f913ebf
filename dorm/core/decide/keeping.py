"""Apps that are kept whole (`dorm.core.apps.resizable`), in the question to a policy, which knows nothing of them.

pinned    in the question they stay as they are, unless they have to change
relief    if the answer leaves an app waiting, or with less than half its fair share, the policy is asked again, with some
          of them released: to shrink, never to grow.  Those whose restart undoes the least come first, then four times as
          many, and so on.  The first answer that helps counts; if none does, all of them stay
too large if one of them has more than twice its fair share, it is released in the same way while others have less than
          theirs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from dorm.core.apps.resizable import NEVER, kept_whole, undone_s
from dorm.core.sizes import takes_free_room_only
from dorm.policies import integer
from dorm.policies.problem import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from dorm.core.state import State
    from dorm.policies.integer import Instance, Ints
    from dorm.policies.problem import Allocation, Problem

_FLOOR = 0.5
"""Of its fair share: an app that has less may take room from one that is kept whole."""
_TOO_LARGE = 2
"""Times its fair share: beyond it, an app that is kept whole gives room to all that have less than theirs.  With a lower
factor, each app that arrives would restart it."""
_STEP = 4
"""A factor: with hundreds of apps that are kept whole, a policy is asked a few times more."""


class _HasAnswer(Protocol):
    @property
    def answer(self) -> Allocation: ...


Answered = TypeVar("Answered", bound=_HasAnswer)


class Kept(NamedTuple):
    """An app that is kept whole."""

    reason: Reason
    least: int
    """The containers that are left to it in any case."""
    undone_s: float
    """The work that a restart would undo, in seconds."""
    too_large: bool
    """It has more than `_TOO_LARGE` times its fair share."""


def kept_of(state: State, problem: Problem, instance: Instance, now: int) -> dict[str, Kept]:
    """Return the apps that are kept whole at `now` (UTC ns): not those that are pinned for another reason, or that have to
    change.  `instance` is the problem's."""
    found, fair = {}, _containers(instance, 1.0)
    forced = dict(zip((app.id for app in instance.apps), instance.forced.tolist(), strict=True))
    for app in problem.apps:
        one = state.apps[app.id]
        if app.pinned or app.again or forced[app.id] or (why := kept_whole(one, now)) is None:
            continue
        least = max(app.n_min, fair[app.id]) if why.code == NEVER else app.n_min
        too_large = sum(app.current.values()) > max(app.n_min, _TOO_LARGE * fair[app.id])
        found[app.id] = Kept(why, least, undone_s(one, now), too_large)
    return found


def limited(state: State, problem: Problem, instance: Instance, kept: Collection[str]) -> dict[str, int]:
    """Return the apps that are never resized and start now, or have to start again, with the most containers that they may
    start with.  `instance` is the problem's."""
    asked = [app for app in problem.apps if state.apps[app.id].spec.resizable == "never"]
    if not asked:
        return {}
    fair = _containers(instance, 1.0)
    return {
        app.id: max(app.n_min, fair[app.id])
        for app in asked
        if not app.pinned and not app.absent and app.id not in kept and max(app.n_min, fair[app.id]) < app.n_max
    }


def starts_with(most: int) -> Reason:
    """Return why an app that is never resized starts with no more than this."""
    size = "1 container" if most == 1 else f"{most} containers"
    return Reason(
        NEVER, f"resizable is never in its spec, so it starts with its fair share, at most {size}, and keeps it"
    )


def _containers(instance: Instance, part: float) -> dict[str, int]:
    """Return by app how many containers this part of its fair share is."""
    fair = integer.theoretical_shares(instance, instance.possible)
    unit = np.where(np.isfinite(instance.unit) & (instance.unit > 0), instance.unit, np.inf)
    units: Ints = np.floor(part * fair / unit + 1e-6).astype(np.int64)
    return {app.id: count for app, count in zip(instance.apps, (units * instance.gang).tolist(), strict=True)}


def answered(
    state: State, problem: Problem, kept: Mapping[str, Kept], now: int, ask: Callable[[Problem], Answered]
) -> tuple[Problem, Answered]:
    """Ask about a problem in which the apps of `kept` are pinned, and if that leaves others short, about some in which they
    are not; return the one that counts, with its answer."""
    first = ask(problem)
    able = [app.id for app in problem.apps if app.id in kept and sum(app.current.values()) > kept[app.id].least]
    able.sort(key=lambda app_id: (kept[app_id].reason.code == NEVER, kept[app_id].undone_s, app_id))
    for part, released in ((_FLOOR, able), (1.0, [app_id for app_id in able if kept[app_id].too_large])):
        lack = _lacking(state, problem, first.answer, kept, part, now) if released else None
        if lack is None or lack <= (0, 0):
            continue
        for other in _relief(problem, kept, released):
            found = ask(other)
            then = _lacking(state, problem, found.answer, kept, part, now)
            if then is not None and then < lack:
                return other, found
    return problem, first


def _relief(problem: Problem, kept: Mapping[str, Kept], able: Sequence[str]) -> Iterator[Problem]:
    """Yield the problem with more and more of these apps released: they may shrink to what is left to them."""
    number = 1
    while True:
        released = frozenset(able[:number])
        apps = tuple(
            msgspec.structs.replace(app, pinned=False, n_min=kept[app.id].least, n_max=sum(app.current.values()))
            if app.id in released
            else app
            for app in problem.apps
        )
        yield msgspec.structs.replace(problem, apps=apps)
        if number >= len(able):
            return
        number *= _STEP


def _lacking(
    state: State, problem: Problem, answer: Allocation, kept: Mapping[str, Kept], part: float, now: int
) -> tuple[int, int] | None:
    """Return how many apps an answer lets wait although an empty cluster could run them, and how many containers other apps
    lack to this part of their fair share; None for an answer that stops an app of `kept`.

    An app for which room is being cleared over several rounds does not wait for help, and nobody is resized for one that fails
    again and again."""
    if not all(answer.counts.get(app_id) for app_id in kept):
        return None
    instance = integer.read(problem)
    shares = _containers(instance, part)
    waiting = short = 0
    for row, app in enumerate(instance.apps):
        given = answer.counts.get(app.id)
        if app.id in kept or app.pinned or app.absent or given is None:
            continue
        if given:
            short += max(0, shares[app.id] - sum(given.values()))
        elif instance.possible[row] and not takes_free_room_only(state.apps[app.id], now):
            reason = answer.reasons.get(app.id)
            waiting += not (answer.overhead and reason is not None and reason.code == "overhead")
    return waiting, short
