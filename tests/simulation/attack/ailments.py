"""Nodes on which apps fail although nothing is wrong with the apps, and the operator who trusts such nodes.

containers can't be created   the engine refuses each request (`Attack`)
apps fail early               each container fails a few seconds after its start
starts take long              the engine needs so long to start a container that its agent may give up
node flaps                    apps fail early, in turns with times in which they work
node's disk fills             nothing new can be written, and the agent notices
health program fails          the operator's own program says that the node is not fit
node trusted                  an operator says so, whatever is wrong
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from events import kinds as k

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.attack.attack import Attack
    from tests.simulation.attack.faults import Fault
    from tests.simulation.machines.machine import Machine

WAYS: Final = ("containers can't be created", "apps fail early", "starts take long", "node flaps")
"""Ways in which a node is bad that only show once apps fail there."""
UNFIT: Final = ("node's disk fills", "health program fails")
"""Ways that its agent finds out by itself."""
_EARLY_S = (0.5, 5.0)
_LONG_S = (8.0, 40.0)
_TURN_S = (4.0, 15.0)


def _drawn(fault: Fault, bounds: tuple[float, float]) -> float:
    return round(bounds[0] + (bounds[1] - bounds[0]) * fault.argument, 2)


def _machine(attack: Attack, fault: Fault) -> Machine:
    return attack.history.machines[attack.place(fault)]


def _fail_early(attack: Attack, fault: Fault) -> None:
    machine = _machine(attack, fault)
    machine.fails_after_s = _drawn(fault, _EARLY_S)
    attack.later(fault.for_s, lambda: setattr(machine, "fails_after_s", 0.0))


def _start_slowly(attack: Attack, fault: Fault) -> None:
    machine = _machine(attack, fault)
    machine.launch_s = _drawn(fault, _LONG_S)
    attack.later(fault.for_s, lambda: setattr(machine, "launch_s", 0.0))


def _flap(attack: Attack, fault: Fault) -> None:
    machine, until = _machine(attack, fault), attack.world.now + fault.for_s

    def turn(bad: bool) -> None:
        over = attack.world.now >= until
        machine.fails_after_s = 2.0 if bad and not over else 0.0
        if not over:
            attack.later(_drawn(fault, _TURN_S), lambda: turn(not bad))

    turn(True)


def _fill_disk(attack: Attack, fault: Fault) -> None:
    machine = _machine(attack, fault)
    machine.disk_full = True
    attack.later(fault.for_s, lambda: setattr(machine, "disk_full", False))


def _fall_ill(attack: Attack, fault: Fault) -> None:
    machine = _machine(attack, fault)
    machine.ill = "fan 2 stands still"
    attack.later(fault.for_s, lambda: setattr(machine, "ill", ""))


def _trust(attack: Attack, fault: Fault) -> None:
    attack.history.say(k.NodeTrustRequested(node=fault.target, reason="it was looked at"))


HITS: Final[dict[str, Callable[[Attack, Fault], None]]] = {
    "apps fail early": _fail_early,
    "starts take long": _start_slowly,
    "node flaps": _flap,
    "node's disk fills": _fill_disk,
    "health program fails": _fall_ill,
    "node trusted": _trust,
}
