"""The invariants at the end of a history, when everything has come to rest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from agents.desired import Desired
from agents.runtime.interface import RuntimeFault
from dorm.core.evolve import evolve
from dorm.core.next_round import _surely_free
from dorm.core.parts.deriving import part_of
from dorm.core.state import State, digest
from events.log.memory import MemoryLog
from replay.audit.audit import verify

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.world.process import Process
    from tests.simulation.world.shells import AgentProcess
    from tests.simulation.world.world import World


def check_death(world: World, process: Process) -> None:
    """Check why a process ended: an agent may give up at its start if its engine can't be reached; none gives up because of
    the log, for which they wait."""
    causes = leaves(process.error)
    if not all(isinstance(cause, RuntimeFault) for cause in causes):
        world.fail(f"{process.name} died: {causes!r}")


def leaves(error: BaseException | None) -> list[BaseException]:
    """Return the exceptions without the groups around them."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error] if error is not None else []


def check_end(history: History) -> None:
    """Check promises 1 and 4, and that all room is free.  Raises Broken."""
    world, hold = history.world, history.checks.hold
    free = _surely_free(world.whole, world.whole.nodes).room
    for name, node in world.whole.nodes.items():
        if name in history.machines:
            hold(free[name] == node.capacity, f"nothing runs, and {name} has only {free[name]} free")
    for name in history.machines_of():
        hold(name in world.whole.nodes, f"{name} runs, has joined, and is not known")
    for stored in world.stored:
        kept = world.server.records[stored.seq - 1] if stored.seq <= len(world.server.records) else None
        hold(
            kept is not None and kept.msg_id == stored.msg_id,
            f"{stored.msg_id} was acknowledged as {stored.seq}, and is not there",
        )
    _check_folds(history)
    if history.audited:
        _audit(history)


def _check_folds(history: History) -> None:
    """Check that all folds agree, however the log is cut."""
    world, hold = history.world, history.checks.hold
    again, resumed = State(), State()
    records = world.server.records[: world.whole.seq]  # The last one may not be durable yet.
    cut = world.chance("cut").randint(0, len(records))
    for record in records:
        evolve(again, record)
        evolve(resumed, record)
        if record.seq == cut:
            resumed = msgspec.msgpack.decode(msgspec.msgpack.encode(resumed), type=State)
    hold(digest(again) == digest(resumed) == digest(world.whole), f"cut at {cut}, the log folds to another state")
    for host, process in history.leaders.items():
        master = process.master if process.alive and process.steps else None
        if master is not None and master.state.seq == again.seq:
            hold(digest(master.state) == digest(again), f"the master on {host} has another state")
    for agent in history.agents.values():
        if agent.alive:
            _check_desired(history, agent.agent.config.name, agent)


def has_read(world: World, desired: Desired) -> bool:
    """Return whether an agent desires what a part of the last record says."""
    return desired.fresh and _known(desired) == _known(_by_part(world, desired.node))


def _by_part(world: World, node: str) -> Desired:
    desired = Desired(node)
    desired.install(part_of(world.whole, world.cluster, node))
    return desired


def _known(desired: Desired) -> tuple[object, ...]:
    return desired.due, desired.wanted().keys(), desired.condition, desired.epoch, desired.holder, desired.times


def _check_desired(history: History, node: str, process: AgentProcess) -> None:
    desired, again = process.agent.desired, _by_part(history.world, node)
    same = _known(desired) == _known(again)
    history.checks.hold(same, f"the agent of {node} desires something else: {desired.due} and not {again.due}")


def _audit(history: History) -> None:
    """Check that every decision can be repeated byte for byte."""
    log = MemoryLog(history.world.wall, history.world.server.records)
    report = asyncio.run(verify(log))
    history.checks.hold(report.good, f"an audit of the log finds {report.divergence}")
