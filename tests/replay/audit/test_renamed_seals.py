"""A sealed log that became the log of a cluster of another name: no false alarm, and sealed again from its first record."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.state import SCHEMA, State
from dorm.master.sealing import Sealer
from events import subjects
from events.archive.damage import ReadablePart
from events.archive.segments import open_archive
from events.chain import SealKey, new_seed
from events.codec import encode
from events.kinds import MasterElected, Round
from events.nats.connection import Connection
from events.nats.importing import import_log
from replay.audit.audit import verify
from replay.audit.seal_checks import verify_seals
from replay.export.export import export
from tests.events.log.readable_conformance import read_all
from tests.master.sealed import CLUSTER, START, sealed_log
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from pathlib import Path

    from events.kinds import Event
    from events.log.interface import EventLog
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats
SEALS = 2


async def go_on(log: EventLog, name: str) -> int:
    """Another master takes over and seals all of it; what its seal covers.  It has nothing to say against the old seals."""
    sealer, state = Sealer(name, SealKey(new_seed()), renamed=await log.renamed_upto()), State()
    for record in await read_all(log):
        sealer.take(record, evolve(state, record).event)
    assert not sealer.misfit
    epoch = state.epoch + 1

    async def say(fact: Event) -> None:
        event = Round(
            id=secrets.token_hex(8), at=START, by="m2", epoch=epoch, basis=state.seq, allocated=False, core=SCHEMA,
            events=[fact],  # type: ignore[list-item]  # facts of a master
        )  # fmt: skip
        await log.append(subjects.rounds(name), encode(event), msg_id=event.id)
        [record] = await read_all(log, state.seq)
        sealer.take(record, evolve(state, record).event)

    await say(MasterElected(epoch=epoch, key=sealer.public))
    seal = sealer.seal(epoch)
    await say(seal)
    return seal.upto


async def test_seals_under_another_name(nats_server: NatsServer, tmp_path: Path) -> None:
    name = f"imported-{secrets.token_hex(4)}"
    records = sealed_log(SEALS, 20).records
    await export(log_of(records), tmp_path / "log.dorm")
    await import_log(await open_archive(tmp_path / "log.dorm"), nats_server.url, name)
    connection = await Connection.open(nats_server.url, name)
    try:
        log = connection.log
        assert await log.renamed_upto() == len(records)
        report = await verify_seals(log)
        assert report.good
        assert (report.renamed, report.seals, report.sealed_upto) == (SEALS, 0, 0)
        upto = await go_on(log, name)
        assert upto == len(records) + 1
        await export(log, tmp_path / "copy.dorm")
        copy = await open_archive(tmp_path / "copy.dorm")
        for one in (log, copy, ReadablePart(copy, upto + 1, "damaged behind it")):
            report = (await verify(one)).seals if one is not copy else await verify_seals(one)
            assert (report.renamed, report.seals, report.sealed_upto) == (SEALS, 1, upto)
    finally:
        await connection.close()


async def test_seals_remain_valid_under_the_same_name(nats_server: NatsServer) -> None:
    records = sealed_log(SEALS, 20).records
    await import_log(log_of(records), nats_server.url, CLUSTER)
    connection = await Connection.open(nats_server.url, CLUSTER)
    try:
        assert await connection.log.renamed_upto() == 0
        report = await verify_seals(connection.log)
        assert report.good
        assert (report.renamed, report.seals) == (0, SEALS)
    finally:
        await connection.close()


async def test_the_new_seal_covers_imported_records(nats_server: NatsServer, tmp_path: Path) -> None:
    name = f"imported-{secrets.token_hex(4)}"
    await import_log(log_of(sealed_log(SEALS, 20).records), nats_server.url, name)
    connection = await Connection.open(nats_server.url, name)
    try:
        await go_on(connection.log, name)
        records = await read_all(connection.log)
        for seq in (2, 20):
            changed = msgspec.structs.replace(records[seq - 1], time=records[seq - 1].time + 1)
            forged = log_of([*records[: seq - 1], changed, *records[seq:]])
            forged.renamed_upto = connection.log.renamed_upto  # type: ignore[method-assign]
            report = await verify_seals(forged)
            assert report.damage is not None
            assert report.damage.first <= seq <= report.damage.last
    finally:
        await connection.close()
