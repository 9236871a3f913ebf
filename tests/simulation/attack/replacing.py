"""Faults of a node's identity: another machine under the same name, and a removed folder.

A place is one machine of one name: `n3` is the first machine of that name, `n3+1` the one that replaces it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.machine_identity import FILE

if TYPE_CHECKING:
    from tests.simulation.attack.attack import Attack
    from tests.simulation.attack.faults import Fault
    from tests.simulation.history import History
    from tests.simulation.machines.machine import Machine

_MOST_PLACES = 4
_SLACK_S = 5.0
_ARRIVES_S = 12.0
"""The longest time until the operator has another machine under the name."""


def replace_node(attack: Attack, fault: Fault) -> None:
    """An operator starts another machine, with an empty folder, under the name of one that is paused, cut off, dead, without
    power, or still alive."""
    history = attack.history
    old = attack.place(fault)
    host, machine = history.hosts[old], history.machines[old]
    if len(history.machines_named(fault.target)) >= _MOST_PLACES:
        return
    # It may take that long until nothing runs on the old machine, and until then the newcomer does not hold the name.
    history.disturb(fault.target, fault.for_s + history.whole_lease_s + _SLACK_S)
    choice = fault.argument
    if choice < 0.3:
        attack.pause(old, fault.for_s)
    elif choice < 0.6:
        host.cut(silent=choice < 0.5)
        attack.later(fault.for_s, host.heal)
    elif choice < 0.75:
        history.retire(old)
    elif choice < 0.85:
        history.retire(old)
        if machine.powered:
            machine.lose_power(tail=choice < 0.8)
    after_s = _ARRIVES_S * (fault.argument * 1e3 % 1)
    attack.later(after_s, lambda: history.add_machine(fault.target, hit=choice < 0.85))


def remove_folder(attack: Attack, fault: Fault) -> None:
    """Remove a node's folder while its agent runs, is stopped for a while, or has died."""
    history, place = attack.history, attack.place(fault)
    history.disturb(fault.target, fault.for_s + history.whole_lease_s + _SLACK_S)
    if fault.argument < 0.4:
        attack.pause(place, fault.for_s)
    elif fault.argument < 0.7:
        history.down_for[place] = fault.for_s
        for process in list(history.hosts[place].processes):
            process.kill()
    machine = history.machines[place]
    history.checks.lost_by_nature |= {container.key.app for container in machine.containers.values()}
    machine.lose_folder(whole=int(fault.argument * 1e4) % 3 > 0)


def settle_names(history: History) -> None:
    """In the end, an operator stops all agents of a name except the one that holds it."""
    for name in history.machines_of():
        if all(machine.place in history.retired for machine in history.machines_named(name)):
            history.add_machine(name, hit=True)  # the one that was starting
        machines = history.machines_named(name)
        node = history.world.whole.nodes.get(name)
        holds = [machine.place for machine in machines if node is not None and _identity(machine) == node.identity]
        alive = [machine.place for machine in machines if machine.place not in history.retired]
        kept = next((place for place in holds if place in alive), alive[-1])
        for place in alive:
            if place != kept:
                history.retire(place)
        history.place_of[name] = kept


def _identity(machine: Machine) -> str:
    """Return the identity in its agent's folder."""
    try:
        return (machine.folder / "agent" / FILE).read_text().split()[0]
    except (FileNotFoundError, IndexError):
        return "none"
