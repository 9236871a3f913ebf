"""Variants that take more than a line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from agents.desired import Desired
from agents.outputs.folders import CheckpointFolder
from agents.progress import ProgressFact, ProgressFile
from agents.runtime.interface import Key
from dorm.core.evolve import evolve
from dorm.core.parts import deriving
from dorm.core.parts.deriving import known_nodes
from dorm.core.state import Node, State
from dorm.master.failure_detector import FailureDetector
from dorm.master.lease import Lease
from dorm.master.master import Master
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.records import Record
from tests.simulation.attack.faults import Fault
from tests.simulation.attack.hostile import trusted
from tests.simulation.breaking.patches import code, together
from tests.simulation.machines.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import pytest

    from dorm.core.leader import Publish
    from tests.simulation.history import History


def announced_by_the_decision(patch: pytest.MonkeyPatch) -> None:
    """Agents treat the decision as the release."""
    resize = Desired._resize

    def announced(desired: Desired, change: k.Resize, time: int) -> None:
        app = desired.apps.get(change.app)
        if app is None or change.adjustment != "live" or app.generation != change.to_generation:
            resize(desired, change, time)
            return
        known = {placed.slot for placed in app.placement}
        app.membership, app.members = change.membership, change.placement
        for placed in change.placement:
            if placed.node == desired.node and placed.slot not in known:
                app.first[placed.slot] = change.placement
                desired.due.add(Key(change.app, app.generation, placed.slot))

    patch.setattr(Desired, "_resize", announced)
    code(deriving._announced, ("and change.released_at", ""))(patch)


def lease_never_ends(patch: pytest.MonkeyPatch) -> None:
    async def keep(self: Lease) -> None:
        await asyncio.Event().wait()

    patch.setattr(Lease, "keep", keep)
    patch.setattr(Lease, "held", property(lambda self: True))


def lease_is_everybodys(patch: pytest.MonkeyPatch) -> None:
    async def win(self: Lease) -> None:
        self.settled.set()

    lease_never_ends(patch)
    patch.setattr(Lease, "win", win)


def runtime_forgets_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Machine, "_guard", lambda self: None)


def nothing_is_silence_of_ours(patch: pytest.MonkeyPatch) -> None:
    def restart(self: FailureDetector, nodes: Iterable[str], now: int) -> None:
        self._at = {node: self._at.get(node, now) for node in sorted(nodes)}

    patch.setattr(FailureDetector, "restart", restart)
    patch.setattr(FailureDetector, "is_cut_off", lambda self, now: False)
    patch.setattr(FailureDetector, "stored", lambda self, node, heartbeat, now: None)


def among_hostile(
    apply: Callable[[pytest.MonkeyPatch], object],
) -> Callable[[pytest.MonkeyPatch], Callable[[History], None]]:
    """Break code in a history whose cluster knows everyone, with hostile identities."""
    return together(apply, lambda _: trusted)


def unmounted_at_releases(history: History) -> None:
    """Take the mount from nodes that have just been told to start an app, and restart their agents: these find another folder,
    announce it, and then read what they should start.  The usual histories hardly ever have that moment."""
    chance, world = history.world.chance("unmounts"), history.world
    kind, number = "checkpoint folder not mounted", 1000

    def unmount(record: Record) -> None:
        nonlocal number
        event = decode(record)
        for fact in event.events if isinstance(event, k.Round) else ():
            app = world.whole.apps.get(fact.app) if isinstance(fact, k.GenerationReleased) else None
            if app is None or app.current is None or chance.random() < 0.7:
                continue
            node = chance.choice(
                sorted({one.node for one in app.current.containers.values()} & {*history.machines}) or [""]
            )
            if node:
                number += 1
                history.attack.schedule([Fault(number, world.now, kind, node, 6.0, 0.0)])

    world.server.on_record.append(unmount)


def wall_clock(patch: pytest.MonkeyPatch) -> None:
    for method in (Master._listen, Master._fold, Master._elect, Master._moment, Master._ask, Master._probe_log):
        code(method, ("_loop_ns()", "self._clock()"))(patch)


def marker_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    def of_app(self: CheckpointFolder, app: str, *, resume: bool, cluster: str = "") -> Path:
        del resume, cluster
        folder = self.path / app
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    patch.setattr(CheckpointFolder, "look", lambda self: "0" * 32)
    patch.setattr(CheckpointFolder, "of_app", of_app)


def names_are_free_once_silent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Node, "gone", property(lambda self: self.condition != "up"))
    code(Desired.may_hold, ('in ("", "left")', '!= "up"'))(patch)


def removed_folders_keep_no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Machine, "_guard_strays", lambda self, strays: None)


def every_line_is_a_fact(patch: pytest.MonkeyPatch) -> None:
    take, due = ProgressFile._take, ProgressFile._due

    def read(self: ProgressFile, now_s: float, *, final: bool = False) -> list[ProgressFact]:
        chunk = self._read_chunk()
        self._offset -= len(chunk)
        facts: list[ProgressFact] = []
        for line in chunk.splitlines(keepends=True):
            self._offset += len(line)
            take(self, line)
            facts += due(self, now_s, final=True)
        return facts

    patch.setattr(ProgressFile, "read", read)


def parts_before_their_round(patch: pytest.MonkeyPatch) -> None:
    """Agents may act on a round that is never stored."""
    publish = Master._publish

    async def early(self: Master, said: Publish) -> bool:
        ahead = msgspec.msgpack.decode(msgspec.msgpack.encode(self.state), type=State)
        subject = subjects.rounds(self._cluster)
        evolve(ahead, Record(ahead.seq + 1, ahead.time, subject, encode(said.round)))
        await self._parts._store(ahead, known_nodes(ahead), [])
        return await publish(self, said)

    patch.setattr(Master, "_publish", early)
