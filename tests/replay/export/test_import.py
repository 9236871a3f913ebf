"""An archive that becomes a cluster's log on a real NATS server."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from typing import TYPE_CHECKING

import msgspec
import nats
import pytest

from dorm.core.state import digest
from events.archive.segments import open_archive
from events.log.memory import MemoryLog
from events.log.records import HEADER, LogDamaged, LogRefused, LogUnavailable, Record, header, imported_upto, original
from events.log.stores import identity
from events.nats.connection import Connection
from events.nats.importing import import_log
from replay import frames
from replay.audit.audit import verify
from replay.export.export import export
from replay.export.selection import Selection
from replay.moments import AtSequence, BeforeEnd
from replay.travel import state_at
from tests.events.log.readable_conformance import read_all
from tests.lab.machines.nats_server import NatsServer
from tests.replay.codes import code_in
from tests.replay.made_log import CLUSTER, log_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.nats


@pytest.fixture
def name() -> str:
    return f"imported-{secrets.token_hex(4)}"


def renamed(records: Sequence[Record], name: str) -> list[Record]:
    def one(record: Record) -> Record:
        return msgspec.structs.replace(record, subject=record.subject.replace(f".{CLUSTER}.", f".{name}.", 1))

    return [one(record) for record in records]


async def test_the_records_are_the_same_and_so_is_the_state(
    nats_server: NatsServer, written: list[Record], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "EVERY", 20)
    await export(log_of(written), tmp_path / "log.dorm")
    archive = await open_archive(tmp_path / "log.dorm")
    done = await import_log(archive, nats_server.url, name)
    assert (done.records, done.before) == (len(written), 0)
    connection = await Connection.open(nats_server.url, name)
    try:
        log = connection.log
        assert await read_all(log) == renamed(written, name)
        assert await log.last_on(f"dorm.{name}.round.master") == renamed(written, name)[-1]
        assert digest(await state_at(log)) == digest(await state_at(log_of(written)))
        for moment in (AtSequence(7), BeforeEnd(10**9), BeforeEnd(10**18)):
            assert digest(await state_at(log, moment)) == digest(await state_at(archive, moment))
        for record in written:
            for time in (record.time - 1, record.time, record.time + 1):
                assert await log.at_time(time) == await archive.at_time(time)
        report = await verify(log)
        assert report.good
        assert report.decisions_checked == (await verify(archive)).decisions_checked
        await frames.leave_snapshot(log)
        [info] = await log.snapshots.infos()
        assert (info.seq, info.record) == (len(written), identity(renamed(written, name)[-1]))
        assert info.digest == digest(await state_at(log)) == digest(await state_at(archive))
        assert info.chain == (await verify(log)).seals.chain
    finally:
        await connection.close()


async def test_a_continued_log_has_the_servers_times(nats_server: NatsServer, written: list[Record], name: str) -> None:
    await import_log(log_of(written), nats_server.url, name)
    connection = await Connection.open(nats_server.url, name, create=True)
    try:
        log = connection.log
        await log.append(f"dorm.{name}.AppSubmitted.eve", b"{}", msg_id="eve-1")
        client = await nats.connect(nats_server.url)
        forged = {HEADER: header(Record(0, 5, "", b"", "forged"))}
        await client.jetstream().publish(f"dorm.{name}.AppSubmitted.eve", b"{}", headers=forged)
        await client.close()
        later = await read_all(log, len(written))
        assert [record.msg_id for record in later] == ["eve-1", ""]
        assert min(record.time for record in later) > written[-1].time
        assert await log.at_time(written[-1].time) == len(written)
        assert await log.at_time(later[0].time) == later[0].seq
    finally:
        await connection.close()


class Stops(MemoryLog):
    """Gives some records and then ends the reading, as a Ctrl-C or a crash would."""

    def __init__(self, records: Sequence[Record], after: int, error: BaseException) -> None:
        super().__init__(lambda: 1, records)
        self._after, self._error = after, error

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if after >= self._after:
            yield self.records[after:]
            return
        for record in self.records[after : self._after]:
            yield [record]
        await asyncio.sleep(0.1)
        raise self._error


@pytest.mark.parametrize("error", [asyncio.CancelledError(), LogDamaged("it ends here")], ids=repr)
async def test_an_interrupted_import_continues(
    nats_server: NatsServer, written: list[Record], name: str, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        await import_log(Stops(written, 20, error), nats_server.url, name)
    done = await import_log(log_of(written), nats_server.url, name)
    assert 0 < done.before <= 20
    assert done.records == len(written)
    again = await import_log(log_of(written), nats_server.url, name)
    assert (again.records, again.before) == (len(written), len(written))
    connection = await Connection.open(nats_server.url, name)
    assert await read_all(connection.log) == renamed(written, name)
    await connection.close()


async def test_a_cluster_that_is_there_is_left_alone(nats_server: NatsServer, written: list[Record], name: str) -> None:
    connection = await Connection.open(nats_server.url, name, create=True)
    await connection.log.append(f"dorm.{name}.AppSubmitted.eve", b"{}")
    with pytest.raises(LogRefused) as refused:
        await import_log(log_of(written), nats_server.url, name)
    assert repr(name) in str(refused.value)
    assert await connection.log.end() == 1
    await connection.close()
    await import_log(log_of(written[:20]), nats_server.url, f"{name}-2")
    with pytest.raises(LogRefused) as refused:
        await import_log(log_of(written), nats_server.url, f"{name}-2")
    assert repr(f"{name}-2") in str(refused.value)


async def test_no_app_starts_in_between(nats_server: NatsServer, name: str) -> None:
    many = [Record(seq, seq, f"dorm.{CLUSTER}.AppSubmitted.eve", b"%d" % seq) for seq in range(1, 1501)]

    class Interrupted(MemoryLog):
        async def read(
            self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
        ) -> AsyncGenerator[list[Record], None]:
            if not after:
                yield many[:1000]
                connection = await Connection.open(nats_server.url, name)
                await connection.log.append(f"dorm.{name}.AppSubmitted.mallory", b"{}")
                await connection.close()
            yield many[max(1000, after) :]

    with pytest.raises(LogRefused) as refused:
        await import_log(Interrupted(lambda: 1, many), nats_server.url, name)
    assert "1001 to 1500" in str(refused.value)


async def test_only_a_whole_log_becomes_a_cluster(
    nats_server: NatsServer, written: list[Record], name: str, tmp_path: Path
) -> None:
    await export(log_of(written), tmp_path / "part.dorm", selection=Selection(since=AtSequence(5)))
    await export(log_of(written), tmp_path / "one.dorm", selection=Selection(apps=("one",)))
    for file in ("part.dorm", "one.dorm"):
        with pytest.raises(LogRefused):
            await import_log(await open_archive(tmp_path / file), nats_server.url, name)
    strange = [msgspec.structs.replace(written[0], subject="elsewhere"), *written[1:]]
    with pytest.raises(LogRefused) as refused:
        await import_log(log_of(strange), nats_server.url, name)
    assert "'elsewhere'" in str(refused.value)


async def test_a_killed_server_loses_nothing(tmp_path: Path, written: list[Record], name: str) -> None:
    server = NatsServer(tmp_path)
    await server.start()
    many = [Record(seq, seq, f"dorm.{CLUSTER}.AppSubmitted.eve", b"%d" % seq, f"id-{seq}") for seq in range(1, 3001)]
    killing: list[asyncio.Task[None]] = []

    def kill(done: int, _total: int) -> None:
        if done >= 1000 and not killing:
            killing.append(asyncio.create_task(server.kill()))

    try:
        with pytest.raises(LogUnavailable):
            await import_log(log_of(many), server.url, name, progress=kill)
        await killing[0]
        await server.start()
        done = await import_log(log_of(many), server.url, name)
        assert done.before >= 1000
        connection = await Connection.open(server.url, name)
        assert await read_all(connection.log) == renamed(many, name)
        await connection.close()
    finally:
        await server.stop()


def test_headers_are_read_as_they_were_written() -> None:
    for msg_id in ("", "plain-1", "with space", "grün%20", "a\r\nb: c"):
        record = Record(1, -5, "", b"", msg_id)
        raw = f"NATS/1.0\r\nOther: x\r\n{HEADER}: {header(record)}\r\n\r\n".encode()
        assert original(raw) == (-5, msg_id)
    assert original(b"NATS/1.0\r\n\r\n") is None
    assert original(f"NATS/1.0\r\n{HEADER}: soon\r\n\r\n".encode()) is None
    assert [imported_upto(given) for given in (None, {}, {"dorm-imported": "12"}, {"dorm-imported": "x"})] == [
        0,
        0,
        12,
        0,
    ]


async def run_dorm(*words: object) -> tuple[int, str, str]:
    """The program in a separate process: exit code, standard output, standard error."""
    program = [sys.executable, "-c", "from dorm.cli.main import main; main()", *map(str, words)]
    process = await asyncio.create_subprocess_exec(
        *program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.soak
async def test_as_a_command(nats_server: NatsServer, written: list[Record], name: str, tmp_path: Path) -> None:
    path = tmp_path / "log.dorm"
    await export(log_of(written), path)
    into = ("--url", nats_server.url, "--cluster", name)
    code, out, err = await run_dorm("replay", "import", path, *into, "-o", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["digest"] == digest(await state_at(log_of(written)))
    code, out, _ = await run_dorm("replay", "verify", *into, "-o", "json")
    assert (code, json.loads(out)["divergence"]) == (0, None)
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    code, _, err = await run_dorm("replay", "import", path, "--url", nats_server.url, "--cluster", f"{name}-2")
    assert code == 1
    assert code_in(err) == "archive.damaged"
