"""What operators do at any moment: they pause scheduling, forget nodes, take machines out, and do not wait for pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from events import kinds as k

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.core.state import State
    from tests.simulation.attack.attack import Attack
    from tests.simulation.attack.faults import Fault
    from tests.simulation.history import History

_INSIST_S = 2.0
_TRIES = 30


def _pause(attack: Attack, fault: Fault) -> None:
    attack.history.say(k.SchedulingPaused(reason="a new switch"))
    attack.later(fault.for_s, lambda: attack.history.say(k.SchedulingResumed()))


def _forget(attack: Attack, fault: Fault) -> None:
    """In the words of a client that does not look first, again and again: so also in the moment in which its lease ends, and
    in which it comes back."""
    attack.history.say(k.NodeForgetRequested(node=fault.target))
    if fault.argument > 0.3:
        for number in range(1, _TRIES):
            attack.later(
                number * _INSIST_S * fault.argument,
                lambda: attack.history.say(k.NodeForgetRequested(node=fault.target)),
            )


def _maintain(attack: Attack, fault: Fault) -> None:
    """Half of them before the node is empty, which is what its lease is for."""
    attack.history.say(k.NodeDrainRequested(node=fault.target, maintenance=True))
    if fault.argument < 0.5:
        place = attack.place(fault)
        attack.history.down_for[place] = fault.for_s
        for process in list(attack.history.hosts[place].processes):
            process.kill()
    attack.later(fault.for_s, lambda: attack.history.say(k.NodeDrainRequested(node=fault.target, drain=False)))


def _retry(attack: Attack, fault: Fault) -> None:
    for app in list(attack.world.whole.names.values()):
        attack.history.say(k.AppRetryRequested(app=app))


def come_to_rest(history: History) -> None:
    """A pause that still waits for a server that was down will count, too."""
    if history.world.whole.paused is not None or history.waits_to_say(k.SchedulingPaused):
        history.say(k.SchedulingResumed())


def decided_while_paused(state: State, event: k.Round) -> str:
    """What is wrong with a decision; "" for nothing.  One whose basis is before the pause was made before it."""
    pause = state.paused
    if pause is None or event.basis < pause.seq:
        return ""
    return f"a decision has the basis {event.basis}, and scheduling is paused since {pause.seq}"


HITS: Final[dict[str, Callable[[Attack, Fault], None]]] = {
    "scheduling paused": _pause,
    "node forgotten": _forget,
    "node in maintenance": _maintain,
    "apps retried now": _retry,
}
