"""Gates at any moment: users hold and release apps, and submit apps that wait for others.

held              some of the apps; they are released after a while
wait for others   a chain of three by a stranger: the second follows the first however that ends, after a delay, and may run
                  for a short time only; the third is for the case that the second fails, so it mostly ends without having run
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dorm.core.gates import hold_of, may_start_at, waits_for_record
from events import kinds as k
from events import subjects
from events.codec import encode
from tests.simulation.machines.apps import STRANGERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import State
    from tests.simulation.attack.attack import Attack
    from tests.simulation.attack.faults import Fault
    from tests.simulation.history import History

_CHAINS = 3000
"""The first index of these apps, which no other app has."""


def _hold(attack: Attack, fault: Fault) -> None:
    live = sorted(attack.world.whole.names.values())
    chosen = live[: 1 + int(fault.argument * len(live))]
    for app in chosen:
        attack.history.say(k.AppHoldRequested(app=app, reason="a moment"))
    for number, app in enumerate(chosen):
        attack.later(fault.for_s + number, partial(attack.history.say, k.AppReleaseRequested(app=app)))


def _submit_chain(attack: Attack, fault: Fault) -> None:
    first, second, third = (f"link{fault.number}{letter}" for letter in "abc")
    _submit(attack.history, fault, 0, first, {})
    more = {"after": [{"app": first, "when": "ended"}], "start_after": f"{fault.for_s}s", "max_runtime": "4s"}
    _submit(attack.history, fault, 1, second, more)
    _submit(attack.history, fault, 2, third, {"after": [{"app": second, "when": "failed"}]})


def _submit(history: History, fault: Fault, place: int, name: str, gates: dict[str, Any]) -> None:
    index = _CHAINS + 3 * fault.number + place
    steps = 4 + int(20 * fault.argument)
    plan = msgspec.structs.replace(STRANGERS, index=index, name=name, steps=steps, n_max=2, on_term="save")
    history.strangers[index] = plan
    spec = {**plan.document(), **gates}
    event = k.AppSubmitted(id=f"chain.{index}", at=history.world.wall(), by="mallory", spec=spec)
    history.append(subjects.fact(history.cluster, "AppSubmitted", "mallory"), encode(event), event.id)


def come_to_rest(history: History) -> None:
    """Release what is held, and what a hold that waits for the server to come back is about to hold."""
    held = [app.id for app in history.world.whole.live_apps() if hold_of(app) is not None]
    for app in dict.fromkeys([*held, *(hold.app for hold in history.still_to_say(k.AppHoldRequested))]):
        history.say(k.AppReleaseRequested(app=app))


class Shut:
    """The record since which each app has had a closed gate that only a record opens."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}

    def wrong(self, state: State, event: k.Round) -> str:
        """Return the error of the last folded round; "" for none."""
        now = max(state.time, event.at)
        early = [app.id for app in state.live_apps() if may_start_at(app) > now]
        shut = [*early, *(app for app, seq in self._since.items() if seq <= event.basis)]
        for fact in event.events:
            if isinstance(fact, k.GenerationReleased | k.MembersReleased) and fact.app in shut:
                return f"{fact.app} has a closed gate, and is released"
            for change in fact.changes if isinstance(fact, k.Resized) else ():
                if change.placement and change.app in shut:
                    return f"{change.app} has a closed gate, and gets containers"
        return ""

    def folded(self, state: State) -> None:
        shut = [app.id for app in state.live_apps() if waits_for_record(app)]
        self._since = {app: self._since.get(app, state.seq) for app in shut}


HITS: Final[dict[str, Callable[[Attack, Fault], None]]] = {
    "apps held": _hold,
    "apps wait for others": _submit_chain,
}
