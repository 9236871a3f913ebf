"""What operators do to a cluster by mistake: settings that would destroy it, and a mount that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from events import kinds as k

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.attack import Attack
    from tests.simulation.faults import Fault

_DESTROYING: Final[tuple[dict[str, Any], ...]] = (
    {"node_lease_s": 1.0},
    {"node_lease_s": 1.0, "node_grace_s": 60.0},
    {"node_grace_s": 600.0},
    {"heartbeat_s": 60.0},
    {"heartbeat_s": 0.1, "node_grace_s": 0.3, "node_lease_s": 1.0},
    {"quiet_ms": 60_000},
)


def _destroy(attack: Attack, fault: Fault) -> None:
    """Settings which are refused, in the words of a client that does not check them."""
    times = _DESTROYING[int(fault.argument * len(_DESTROYING))]
    attack.history.say(k.PolicyChanged(**times))


def _unmount(attack: Attack, fault: Fault) -> None:
    """The shared folder of checkpoints is gone from a node, half the time while its agent starts, where another node has the
    folder: a node that is alone can't know that its own is not the shared one."""
    machine = attack.history.machines[fault.target]
    others = [one for one in attack.history.machines.values() if one.name != machine.name]
    machine.mount(False)
    if fault.argument < 0.5 and any(one.mounted for one in others):
        for process in list(attack.history.hosts[fault.target].processes):
            process.kill()

    def mount() -> None:
        if not attack.over:
            machine.mount(True)

    attack.world.after(fault.for_s, mount)


HITS: Final[dict[str, Callable[[Attack, Fault], None]]] = {
    "settings that would destroy": _destroy,
    "checkpoint folder not mounted": _unmount,
}
