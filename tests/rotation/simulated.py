"""Histories in which the log is rotated repeatedly, while everything else happens as usual.

Before the server removes a record, the archives on disk have to hold it, as it was, up to a seal, with the snapshot to
continue from; and at the end archives and stream have to read as the whole log.  Both are compared with the world's own
truth.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from unittest import mock

import nkeys

import dorm.master.sealing
from dorm.rotation.rotation_due import Policy
from dorm.rotation.rotator import Rotator
from dorm.rotation.service import RotationService
from events import kinds as k
from events.archive.blocks import HEAD_SIZE, head_of, layout_of, unpack_records
from events.archive.files import open_file
from events.archive.stores import FolderStore, digest_of, name_of
from events.archive.whole import WholeLog
from events.chain import Chain, SealKey
from events.codec import decode
from events.kinds import LogRotated, LogSealed, Round
from events.subjects import rotations
from tests.simulation.history import History, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm.master.master import Master
    from events.log.records import Record
    from tests.simulation.world.connection import Connection
    from tests.simulation.world.process import Host

_ASK_S = 4.0
_CHECK_S = 2.0


def rotates(seed: int) -> bool:
    """Return whether `make simulate` rotates the log in this seed's history."""
    return seed >= 100 and seed % 8 == 6


class RotatingHistory(History):
    """A history with a key, many seals, and masters that rotate whatever is sealed."""

    skewed = False  # An earlier release cannot read a log whose start is archived.

    def __init__(self, seed: int, *, alter: Callable[[History], None] = lambda _: None, **parts: object) -> None:
        super().__init__(seed, alter=alter, **parts)  # type: ignore[arg-type]
        chance = self.world.chance("rotation")
        self.world.archives = self.world.folder / "archives"
        self._drawn_key = SealKey(nkeys.encode_seed(chance.randbytes(32), nkeys.PREFIX_BYTE_CLUSTER))
        self._policy = Policy(age_s=0.0, keep_records=chance.choice([0, 10, 40]), keep_s=chance.choice([0.0, 2.0]))
        self._most = chance.choice([15, 60, 1000])
        self.beside = self._service
        self.world.server.on_purge.append(self._check_purge)
        self.cuts = 0

    def run(self, *, tell: bool = False) -> Outcome:
        with mock.patch.object(dorm.master.sealing, "MOST_RECORDS", 20):
            return super().run(tell=tell)

    def _begin(self) -> None:
        self.world.key = self._drawn_key
        super()._begin()
        self.world.after(_ASK_S, self._ask)

    def _ask(self) -> None:
        if not self.over and not self.calm:
            self.say(k.SealRequested())
            self.world.after(_ASK_S, self._ask)

    def _service(self, master: Master, connection: Connection, host: Host) -> RotationService:
        log, folder = connection.log, self.world.archives
        assert isinstance(log, WholeLog)
        assert folder is not None
        rotator = Rotator(
            log,
            self.cluster,
            FolderStore(folder, self.cluster),
            self._drawn_key,
            name=master.name,
            spool=host.folder / "spool",
            clock=host.clock,
            leads=master.elected.is_set,
            most=self._most,
        )
        return RotationService(
            log,
            self.cluster,
            rotator,
            self._policy,
            name=master.name,
            clock=host.clock,
            leads=master.elected.is_set,
            state=lambda: master.state,
            check_s=_CHECK_S,
        )

    # --- the truth ------------------------------------------------------------------------------------------------------

    def _check_purge(self, upto: int) -> None:
        """Raises Broken."""
        records = self.world.server.records
        archived = self._archived()
        hold = self.checks.hold
        hold(archived[:upto] == records[:upto], f"records up to {upto} are removed, and {len(archived)} are archived")
        chain = Chain()
        for record in records[:upto]:
            chain.follow(record)
        sealed = {
            fact.upto: fact.chain
            for event in map(decode, records[: self.world.server.durable])
            if isinstance(event, Round)
            for fact in event.events
            if isinstance(fact, LogSealed)
        }
        hold(sealed.get(upto) == chain.value.hex(), f"records up to {upto} are removed, and no seal ends there")
        cuts = [decode(record) for record in records if record.subject == rotations(self.cluster)]
        cut = next((cut for cut in cuts if isinstance(cut, LogRotated) and cut.upto == upto), None)
        kept = {info.seq: info.content for info, _ in self.world.server.snapshots._kept.values()}
        hold(cut is not None and kept.get(upto) == cut.snapshot, f"the log can't be folded from the cut at {upto}")
        self.cuts += 1

    def _archived(self) -> list[Record]:
        """Return all records in archives that are whole, read without the product's logs."""
        assert self.world.archives is not None
        found: list[Record] = []
        folder = self.world.archives / self.cluster
        for name in sorted(os.listdir(folder) if folder.exists() else []):
            said = name_of(name)
            if said is not None and said.after <= len(found) < said.upto:
                found[said.after :] = _records_in(folder / name, said.digest)
        return found

    def at_end(self) -> None:
        archived, server = self._archived(), self.world.server
        self.checks.hold(len(archived) >= server.purged, "records are in no archive and not in the stream")
        self.checks.hold(archived == server.records[: len(archived)], "the archives do not hold what was on the log")


def _records_in(file: Path, digest: str) -> list[Record]:
    opened = open_file(file)
    try:
        if digest_of(opened) != digest:
            return []
        found = []
        for entry in layout_of(opened).records:
            data = os.pread(opened, entry.size, entry.place)
            head = head_of(data)
            assert head is not None
            found += unpack_records(head, data[HEAD_SIZE:])
        return found
    finally:
        os.close(opened)
