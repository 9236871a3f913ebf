"""The log in a file, and what a broken file does to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from events.archive.appendable import MAGIC, ArchiveLog
from events.log.records import Appended, LogDamaged, LogError, LogRefused, Record
from tests.events.log.conformance import ALICE, BOB, LogConformance, follow_until, read_all
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def clock() -> Callable[[], int]:
    return itertools.count(1).__next__


class TestArchiveLog(LogConformance):
    @pytest_asyncio.fixture
    async def log(self, tmp_path: Path) -> AsyncIterator[ArchiveLog]:
        log = await ArchiveLog.open(tmp_path / "log.dorm", clock())
        yield log
        await log.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.dorm"


async def made(path: Path, count: int) -> list[Record]:
    """An archive of so many records at `path`, closed."""
    log = await ArchiveLog.open(path, clock())
    await log.copy_in([Record(seq, seq * 10, ALICE, b"body %d" % seq, f"id-{seq}") for seq in range(1, count + 1)])
    records = await read_all(log)
    await log.close()
    return records


async def test_it_is_still_there_when_opened_again(path: Path) -> None:
    records = await made(path, 3000)
    reader = await ArchiveLog.open(path)
    assert await read_all(reader) == records
    assert await read_all(reader, 2100) == records[2100:]
    assert await reader.end() == 3000
    assert await reader.last_on(ALICE) == records[-1]
    log = await ArchiveLog.open(path, clock())
    assert (await log.append(ALICE, b"again", msg_id="id-7")).seq == 7
    assert (await log.append(ALICE, b"new", expected_last=3000)).seq == 3001
    await log.close()
    assert await reader.end() == 3001
    assert (await read_all(reader, 3000))[0].body == b"new"


async def test_log_time_stands_still_while_the_clock_goes_back(path: Path) -> None:
    await made(path, 5)
    log = await ArchiveLog.open(path, clock())
    await log.append(ALICE, b"new")
    await log.close()
    assert [record.time for record in await read_all(log)] == [10, 20, 30, 40, 50, 50]


async def test_a_copy_continues_what_is_there(path: Path) -> None:
    await made(path, 2)
    log = await ArchiveLog.open(path, clock())
    with pytest.raises(LogDamaged):
        await log.copy_in([Record(3, 1, ALICE, b""), Record(5, 1, ALICE, b"")])
    await log.copy_in([Record(3, 1, ALICE, b""), Record(4, 1, ALICE, b"")])
    assert await log.end() == 4
    await log.close()


async def test_a_half_written_end_is_left_alone_by_readers_and_cut_off_by_the_next_writer(path: Path) -> None:
    records = await made(path, 3)
    whole = path.read_bytes()
    ends = await frame_ends(path)
    for size in range(ends[1] + 1, ends[2]):
        path.write_bytes(whole[:size])
        reader = await ArchiveLog.open(path)
        assert await read_all(reader) == records[:2]
        assert await reader.end() == 2
        assert await reader.torn() == f"{path} breaks off within record 3, after {size - ends[1]} bytes of it"
        assert path.stat().st_size == size
        log = await ArchiveLog.open(path, clock())
        assert await log.torn() == ""
        await log.append(ALICE, b"new")
        await log.close()
        assert await reader.torn() == ""
        assert [record.body for record in await read_all(reader)] == [b"body 1", b"body 2", b"new"]


async def frame_ends(path: Path) -> list[int]:
    """Where each frame of an archive ends, found by cutting it."""
    whole = path.read_bytes()
    ends: list[int] = []
    cut = path.with_name("cut")
    for size in range(len(MAGIC), len(whole) + 1):
        cut.write_bytes(whole[:size])
        if await (await ArchiveLog.open(cut)).end() > len(ends):
            ends.append(size)
    return ends


@pytest.mark.parametrize("start", [MAGIC[:size] for size in range(len(MAGIC))], ids=repr)
async def test_a_crash_while_it_was_made_leaves_an_empty_log(path: Path, start: bytes) -> None:
    path.write_bytes(start)
    reader = await ArchiveLog.open(path)
    assert await read_all(reader) == []
    assert await reader.torn() == f"{path} breaks off before its first record"
    log = await ArchiveLog.open(path, clock())
    await log.append(ALICE, b"one")
    await log.close()
    assert len(await read_all(await ArchiveLog.open(path))) == 1


async def read_into(path: Path, seen: list[Record]) -> None:
    async for batch in (await ArchiveLog.open(path)).read():
        seen += batch


@settings(max_examples=tries(100, 2000), deadline=None)
@given(data=st.data())
def test_a_flipped_bit_is_found_wherever_it_is(data: st.DataObject) -> None:
    """Every record before it can be read, the damage is named, and a writer touches nothing."""

    async def flip() -> None:
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "log.dorm"
            records = await made(path, 5)
            whole = bytearray(path.read_bytes())
            bit = data.draw(st.integers(0, len(whole) * 8 - 1))
            whole[bit // 8] ^= 1 << bit % 8
            path.write_bytes(whole)
            seen: list[Record] = []
            with pytest.raises(LogDamaged if bit // 8 >= len(MAGIC) else LogRefused):
                await read_into(path, seen)
            frame = (len(whole) - len(MAGIC)) // len(records)  # They are all of the same size.
            assert seen == records[: max(0, bit // 8 - len(MAGIC)) // frame]
            with pytest.raises(LogError):
                await ArchiveLog.open(path, clock())
            assert path.read_bytes() == whole

    asyncio.run(flip())


@settings(max_examples=tries(100, 2000), deadline=None)
@given(tail=st.binary(max_size=200))
def test_any_bytes_behind_the_records_are_no_records(tail: bytes) -> None:
    async def append_tail() -> None:
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "log.dorm"
            records = await made(path, 2)
            with path.open("ab") as file:
                file.write(tail)
            with contextlib.suppress(LogDamaged):
                assert await read_all(await ArchiveLog.open(path)) == records

    asyncio.run(append_tail())


@settings(max_examples=tries(100, 2000), deadline=None)
@given(content=st.binary(max_size=100))
def test_any_other_file_is_refused(content: bytes) -> None:
    async def refuse() -> None:
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "notes.txt"
            path.write_bytes(content)
            if MAGIC.startswith(content[: len(MAGIC)]):
                return
            for opening in (ArchiveLog.open(path), ArchiveLog.open(path, clock())):
                with pytest.raises(LogRefused, match=r"notes\.txt is not a Dorm archive$"):
                    await opening
            assert path.read_bytes() == content

    asyncio.run(refuse())


async def test_records_in_a_wrong_order_are_damage(path: Path) -> None:
    records = await made(path, 3)
    ends = await frame_ends(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: ends[0]] + whole[ends[1] :])
    reader = await ArchiveLog.open(path)
    with pytest.raises(LogDamaged, match="record 3 follows 1 at byte"):
        await read_all(reader)
    with pytest.raises(LogDamaged):
        await reader.end()
    path.write_bytes(MAGIC + whole[ends[0] :])
    with pytest.raises(LogDamaged, match="record 2 follows 0"):
        await read_all(await ArchiveLog.open(path))
    assert len(records) == 3


async def test_a_missing_file_is_refused_for_reading(path: Path) -> None:
    with pytest.raises(LogRefused, match="No such file or directory"):
        await ArchiveLog.open(path)
    with pytest.raises(LogRefused, match="No such file or directory"):
        await ArchiveLog.open(path / "deeper" / "log.dorm", clock())


async def test_a_directory_or_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for path, reason in ((tmp_path, "is a directory"), (pipe, "is not a file")):
        for opening in (ArchiveLog.open(path), ArchiveLog.open(path, clock())):
            with pytest.raises(LogRefused, match=f"{reason}$"):
                await opening


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Root may read everything, so for these tests it is somebody else."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


@pytest.fixture
def locked_away() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp())
    home.chmod(0o755)
    secret = home / "secret.dorm"
    secret.write_bytes(MAGIC)
    secret.chmod(0)
    home.chmod(0o555)
    yield home
    home.chmod(0o755)
    secret.unlink()
    home.rmdir()


async def test_no_permission_is_refused(locked_away: Path, unprivileged: None) -> None:
    secret, new = locked_away / "secret.dorm", locked_away / "new.dorm"
    for opening in (ArchiveLog.open(secret), ArchiveLog.open(secret, clock()), ArchiveLog.open(new, clock())):
        with pytest.raises(LogRefused, match=r"Permission denied$"):
            await opening


async def test_a_log_open_for_reading_takes_nothing(path: Path) -> None:
    await made(path, 1)
    reader = await ArchiveLog.open(path)
    with pytest.raises(LogRefused, match="open for reading only"):
        await reader.append(ALICE, b"two")
    with pytest.raises(LogRefused, match="open for reading only"):
        await reader.copy_in([Record(2, 1, ALICE, b"two")])


async def test_a_closed_log_takes_nothing(path: Path) -> None:
    log = await ArchiveLog.open(path, clock())
    await log.close()
    await log.close()
    with pytest.raises(LogRefused, match="has been closed"):
        await log.append(ALICE, b"one")


async def test_a_second_writer_is_refused_until_the_first_has_closed(path: Path) -> None:
    first = await ArchiveLog.open(path, clock())
    with pytest.raises(LogRefused, match="another process is writing to it"):
        await ArchiveLog.open(path, clock())
    await first.append(ALICE, b"one")
    await first.close()
    second = await ArchiveLog.open(path, clock())
    assert (await second.append(ALICE, b"two")).seq == 2
    await second.close()


async def test_a_full_disk_refuses_and_leaves_no_half_record(path: Path) -> None:
    log = await ArchiveLog.open(path, clock())
    await log.append(ALICE, b"one")
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, before[1]))
        with pytest.raises(LogRefused, match=r"File too large$"):
            await log.append(ALICE, b"x" * 100_000, msg_id="big")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.stat().st_size == size
    assert await log.append(ALICE, b"x" * 100_000, msg_id="big") == Appended(2)
    assert [len(record.body) for record in await read_all(log)] == [3, 100_000]
    await log.close()


WRITER = """
    import asyncio, sys
    from pathlib import Path
    from events.archive.appendable import ArchiveLog

    async def write():
        log = await ArchiveLog.open(Path(sys.argv[1]), lambda: 1)
        for line in sys.stdin:
            stored = await log.append("dorm.conform.AppSubmitted.bob", line.encode())
            print(stored.seq, flush=True)

    asyncio.run(write())
"""


class Writer:
    """Another process that appends each line it is given."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def append(self, text: str) -> int:
        assert self.process.stdin
        assert self.process.stdout
        print(text, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    writer = Writer(path)
    yield writer
    writer.kill()


async def test_a_reader_follows_another_process(path: Path, writer: Writer) -> None:
    assert await asyncio.to_thread(writer.append, "one") == 1
    reader = await ArchiveLog.open(path)
    seen = []
    async with asyncio.timeout(20), aclosing(reader.read(follow=True)) as batches:
        async for batch in batches:
            seen += [record.body for record in batch]
            if len(seen) == 3:
                break
            await asyncio.to_thread(writer.append, f"after {len(seen)}")
    assert seen == [b"one\n", b"after 1\n", b"after 2\n"]
    assert await reader.end() == 3
    last = await reader.last_on(BOB)
    assert last is not None
    assert last.body == b"after 2\n"


async def test_a_reader_follows_past_a_killed_writer(path: Path, writer: Writer) -> None:
    assert await asyncio.to_thread(writer.append, "one") == 1
    reader = await ArchiveLog.open(path)
    following = asyncio.create_task(follow_until(reader, 2))
    with pytest.raises(LogRefused, match="another process is writing"):
        await ArchiveLog.open(path, clock())
    await asyncio.to_thread(writer.kill)
    with path.open("ab") as file:
        file.write(b"\x00\x00")  # Half a frame, as if it had been writing.
    log = await ArchiveLog.open(path, clock())
    await log.append(BOB, b"two")
    async with asyncio.timeout(20):
        assert [record.body for record in await following] == [b"one\n", b"two"]
    await log.close()


async def test_a_file_that_becomes_shorter_is_damage(path: Path) -> None:
    await made(path, 3)
    reader = await ArchiveLog.open(path)
    async with asyncio.timeout(20), aclosing(reader.read(follow=True)) as batches:
        await anext(batches)
        os.truncate(path, len(MAGIC))
        with pytest.raises(LogDamaged, match="become shorter"):
            await anext(batches)


async def test_what_is_known_is_not_read_again(path: Path) -> None:
    """Reading behind the first records works though those are broken: nothing looks at them any more."""
    records = await made(path, 5000)
    reader = await ArchiveLog.open(path)
    assert await reader.end() == 5000
    with path.open("r+b") as file:
        file.seek(len(MAGIC) + 20)
        file.write(b"broken")
    assert await reader.end() == 5000
    assert await read_all(reader, 4500) == records[4500:]
    assert await reader.last_on(ALICE) == records[-1]
    with pytest.raises(LogDamaged):
        await read_all(reader)
