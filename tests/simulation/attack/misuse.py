"""Operators' mistakes: settings that would destroy a cluster, and a missing mount."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agents.outputs.folders import MARKER
from events import kinds as k
from tests.simulation.machines.apps import saved_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulation.attack.attack import Attack
    from tests.simulation.attack.faults import Fault
    from tests.simulation.history import History

_DESTROYING: Final[tuple[dict[str, Any], ...]] = (
    {"node_lease_s": 1.0},
    {"node_lease_s": 1.0, "node_grace_s": 60.0},
    {"node_grace_s": 600.0},
    {"heartbeat_s": 60.0},
    {"heartbeat_s": 0.1, "node_grace_s": 0.3, "node_lease_s": 1.0},
    {"quiet_ms": 60_000},
)


_OPERATOR_S = 10.0
"""Time between two checks of an operator."""


def _destroy(attack: Attack, fault: Fault) -> None:
    """Send settings that are refused, as a client that does not check them."""
    times = _DESTROYING[int(fault.argument * len(_DESTROYING))]
    attack.history.say(k.PolicyChanged(**times))


def _unmount(attack: Attack, fault: Fault) -> None:
    """Remove the shared folder of checkpoints from a node, half the time while its agent starts, if another node has the
    folder: a node that is alone can't know that its own folder is not the shared one."""
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


def settle_folders(history: History) -> None:
    """In the end, an operator checks whether every node has the shared folder again while the cluster still uses another one:
    no node had the mount when its agent started, and apps saved their work below it.  The operator copies that work into the
    shared folder, as the agents' messages advise, and names the folder, as `dorm nodes` advises.  Nothing else needs an
    operator."""
    if history.over:
        return
    whole = history.world.whole
    used, announced = whole.checkpoints, {node.checkpoints for node in whole.nodes.values() if node.condition != "left"}
    shared = _marker(history.world.folder / "checkpoints")
    if used != shared and announced == {shared}:
        saved = {app.id for app in whole.live_apps() if app.checkpoint_in == used}
        history.checks.hold(
            bool(saved), f"the cluster's folder of checkpoints is {used}: no node has it, no app saved in it"
        )
        for machine in history.machines.values():
            if _marker(machine.unmounted) == used:
                for app in sorted(saved):
                    _put_back(machine.unmounted / app, history.world.folder / "checkpoints" / app)
        history.say(k.PolicyChanged(checkpoints=shared))
    history.world.after(_OPERATOR_S, settle_folders, history)


def _marker(folder: Path) -> str:
    """Return the id in a marker, "" for none."""
    path = folder / MARKER
    return path.read_text().strip() if path.exists() else ""


def _put_back(found: Path, shared: Path) -> None:
    if saved_step(found) > saved_step(shared):
        shared.mkdir(exist_ok=True)
        (shared / "step").write_text(str(saved_step(found)))


HITS: Final[dict[str, Callable[[Attack, Fault], None]]] = {
    "settings that would destroy": _destroy,
    "checkpoint folder not mounted": _unmount,
}
