"""Masters do not lead a log that was cut off, changed or recreated behind their back, unless an operator asks for
it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.local.home import key_file, witness_file
from dorm.master.master import Master
from dorm.master.sealing import Integrity, LogAltered, Sighting
from events.chain import SealKey, new_seed
from events.codec import encode
from events.kinds import AppCancelRequested
from events.log.leadership import MemoryLeadership
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import LogDamaged
from events.nats.connection import Connection
from tests.e2e.commands import refused, running, until_printed
from tests.errors import raises
from tests.master.leading import folded, refusal, say
from tests.master.leading import running as leads

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from events.log.leadership import Leadership
    from events.log.records import Record
    from tests.lab.machines.nats_server import NatsServer

CLUSTER = "local"
KEY = SealKey(new_seed())
RECORDS = 20


def leading(
    log: MemoryLog,
    witness: Path | None,
    *,
    accept: bool = False,
    key: SealKey | None = KEY,
    leadership: Leadership | None = None,
) -> AbstractAsyncContextManager[Master]:
    """Raises what ends it before it leads."""
    master = Master(
        log,
        MemoryBus(time.time_ns),
        CLUSTER,
        name=f"m{time.monotonic_ns()}",
        clock=time.time_ns,
        key=key,
        leadership=leadership or MemoryLeadership(),
        witness=witness,
        accept_log=accept,
    )
    return leads(master)


async def lived(witness: Path | None, leadership: Leadership | None = None) -> list[Record]:
    """What a cluster leaves behind, sealed and seen."""
    log = MemoryLog(time.time_ns)
    async with leading(log, witness, leadership=leadership) as master:
        await say(log, CLUSTER, RECORDS)
        await folded(master, RECORDS)
    return log.records


def changed(records: Sequence[Record], seq: int) -> list[Record]:
    return [
        msgspec.structs.replace(record, body=encode(AppCancelRequested(app="another"))) if record.seq == seq else record
        for record in records
    ]


async def test_an_unchanged_log_is_accepted(tmp_path: Path) -> None:
    witness = tmp_path / "master.seen"
    records = await lived(witness)
    seen = msgspec.json.decode(witness.read_bytes(), type=Sighting)
    assert seen.seq == len(records)
    for _ in range(2):
        async with leading(log := MemoryLog(time.time_ns, records), witness):
            pass
        records = log.records
    assert [path.name for path in tmp_path.iterdir()] == ["master.seen"]


@pytest.mark.parametrize("left", [0, 1, RECORDS])
async def test_a_log_that_was_cut_off_is_refused(tmp_path: Path, left: int) -> None:
    witness = tmp_path / "master.seen"
    records = await lived(witness)
    words = await refusal(leading(MemoryLog(time.time_ns, records[:left]), witness))
    assert words.startswith(f"the log ends at record {left}, and record {len(records)} was there before: ")
    assert "`dorm replay import`" in words
    assert "--accept-log" in words
    again = await refusal(leading(MemoryLog(time.time_ns, records[:left]), witness))
    assert again == words, "to have refused it changes nothing"
    shorter = MemoryLog(time.time_ns, records[:left])
    async with leading(shorter, witness, accept=True):
        await say(shorter, CLUSTER, 40)  # Past what was seen of the other log.
    async with leading(shorter, witness):
        pass


async def test_a_log_with_other_records_is_refused(tmp_path: Path) -> None:
    witness = tmp_path / "master.seen"
    async with leading(log := MemoryLog(time.time_ns), witness, key=None):
        pass
    others = [msgspec.structs.replace(record, time=record.time + 1) for record in log.records]
    words = await refusal(leading(MemoryLog(time.time_ns, others), witness))
    assert words.startswith(
        f"the records up to {len(others)} are not those that this master or the last leader has seen: "
    )


async def test_a_log_that_does_not_fit_its_seals_is_refused_by_any_master() -> None:
    records = await lived(None)
    words = await refusal(leading(MemoryLog(time.time_ns, changed(records, 7)), None))
    assert words.startswith(f"the records before {len(records)} are not those that the seal there was made of: ")
    async with leading(MemoryLog(time.time_ns, changed(records, 7)), None, accept=True):
        pass


@pytest.mark.parametrize("left", [0, 1, RECORDS])
async def test_all_masters_expect_the_records_that_the_last_leader_saw(left: int) -> None:
    """The lease says it: none of them has a witness."""
    leadership = MemoryLeadership()
    records = await lived(None, leadership)
    held = await leadership.look()
    assert held is not None
    assert (held.holder, held.seq) == ("", len(records))
    for others in (records[:left], [msgspec.structs.replace(record, time=record.time + 1) for record in records]):
        with pytest.raises((ExceptionGroup, LogAltered)):
            async with leading(MemoryLog(time.time_ns, others), None, key=None, leadership=leadership):
                pass
    shorter = MemoryLog(time.time_ns, records[:left])
    async with leading(shorter, None, accept=True, leadership=leadership):
        pass
    async with leading(shorter, None, leadership=leadership):
        await say(shorter, CLUSTER, RECORDS)


class Behind(MemoryLog):
    """A server that has yet to hear of the last records, and says so only to readers."""

    behind = 3

    async def end(self) -> int:
        return len(self.records) - self.behind

    def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        self.behind = 0
        return super().read(after=after, subjects=subjects, follow=follow)


async def test_a_server_that_is_behind_has_lost_nothing() -> None:
    log = Behind(time.time_ns)
    await say(log, CLUSTER, 10)
    assert await Integrity(CLUSTER, None).open(log, [10]) == 10


class Unprotected(MemoryLog):
    """Its server says so."""

    async def check(self) -> None:
        raise LogDamaged("anybody may delete records from the log")


async def test_a_log_whose_server_lets_it_be_altered_is_refused() -> None:
    with raises(LogDamaged, "log.damaged"):
        async with leading(Unprotected(time.time_ns), None):
            pass
    async with leading(Unprotected(time.time_ns), None, accept=True):
        pass


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b'{"cluster": "other", "seq": 99, "chain": ""}', b"0" * 5000])
async def test_an_empty_witness_is_ignored(tmp_path: Path, text: bytes) -> None:
    witness = tmp_path / "master.seen"
    witness.write_bytes(text)
    async with leading(MemoryLog(time.time_ns), witness):
        pass
    assert msgspec.json.decode(witness.read_bytes(), type=Sighting).cluster == CLUSTER


async def test_a_witness_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with leading(MemoryLog(time.time_ns), tmp_path / "file" / "master.seen"):
        pass


async def test_records_before_a_snapshot_are_not_compared(tmp_path: Path) -> None:
    witness = tmp_path / "master.seen"
    witness.write_bytes(msgspec.json.encode(Sighting(CLUSTER, 5, "0" * 64)))
    integrity = Integrity(CLUSTER, witness)
    log = MemoryLog(time.time_ns)
    await say(log, CLUSTER, 10)
    assert await integrity.open(log, [6]) == 10
    integrity.folded(7, "1" * 64)
    integrity.check()


@pytest.mark.nats
async def test_the_command_gives_advice(tmp_path: Path, nats_server: NatsServer) -> None:
    name = f"doubt-{tmp_path.name[-30:]}"
    home = tmp_path / "home"
    await (await Connection.open(nats_server.url, name, create=True)).close()
    witness = home / key_file(name).relative_to(key_file(name).parents[1])
    witness = witness_file(witness)
    witness.parent.mkdir(parents=True)
    witness.write_bytes(msgspec.json.encode(Sighting(name, 5000, "0" * 64)))
    command = ["master", "--url", nats_server.url, "--cluster", name]
    words = await refused(home, *command, code=1)
    assert words.endswith(" [log.altered]")
    assert "--accept-log" in words
    log = tmp_path / "master.log"
    async with running(home, log, *command, "--accept-log") as process:
        await until_printed(log, "leading", process)
    assert "the log is taken as it is" in log.read_text()
