"""Actions of operators at any moment: pause scheduling, forget nodes, take machines out, retry apps early."""

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
    """Forget a node repeatedly, as a client that does not check first: also when its lease ends, and when it comes back."""
    attack.history.say(k.NodeForgetRequested(node=fault.target))
    if fault.argument > 0.3:
        for number in range(1, _TRIES):
            attack.later(
                number * _INSIST_S * fault.argument,
                lambda: attack.history.say(k.NodeForgetRequested(node=fault.target)),
            )


def _maintain(attack: Attack, fault: Fault) -> None:
    """Take a machine out, half the time before the node is empty, which its lease allows."""
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
    """End pauses, including one that still waits for a server that was down."""
    if history.world.whole.paused is not None or history.still_to_say(k.SchedulingPaused):
        history.say(k.SchedulingResumed())


def decided_while_paused(state: State, event: k.Round) -> str:
    """Return the error of a decision; "" for none.  A decision with a basis before the pause was made before it."""
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
