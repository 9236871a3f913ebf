"""The index of times next to a process's log, and reading with it."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import IO, TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.runtime.interface import Wanted
from agents.runtime.process import supervisor, times
from agents.runtime.process.logs import read_log
from agents.runtime.process.supervisor import look_at_log
from agents.runtime.process.times import MOST, Times, read, thinned
from events.requests import LogPiece, plain
from tests.tries import tries

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 10**9


async def found(folder: Path, **wanted: object) -> tuple[bytes, list[tuple[int, bytes]]]:
    """The output of a container that has ended: plain, and by line."""
    pieces = [piece async for piece in read_log(folder, Wanted(**wanted), lambda: False)]  # type: ignore[arg-type]
    lines = [
        (stretch.time, line)
        for piece in pieces
        for stretch in piece.stretches
        for line in stretch.data.splitlines(keepends=True)
    ]
    return b"".join(map(plain, pieces)), lines


class Clock:
    """The supervisor's clock, which the test moves."""

    now = SECOND

    def time_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    clock = Clock()
    monkeypatch.setattr(times, "time", clock)
    monkeypatch.chdir(tmp_path)
    return clock


def write(folder: Path, text: bytes) -> None:
    with (folder / "log").open("ab") as log:
        log.write(text)


async def test_a_line_gets_the_time_of_the_next_look(clock: Clock, tmp_path: Path) -> None:
    index = Times()
    index.note(0)
    for number in range(1, 6):
        write(tmp_path, b"line %d\n" % number * 2 + b"and ")
        clock.now = number * SECOND
        look_at_log(index)
    whole, lines = await found(tmp_path)
    assert whole == (tmp_path / "log").read_bytes()
    assert [time // SECOND for time, _ in lines[:-1]] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert lines[0] == (SECOND, b"line 1\n")
    assert lines[-1] == (5 * SECOND, b"and ")
    assert (await found(tmp_path, since=3 * SECOND))[0].startswith(b"and line 3\nline 3\n")
    assert (await found(tmp_path, since=3 * SECOND, tail=1))[0] == b"and "
    write(tmp_path, b"late\n")  # since the last look
    time, line = (await found(tmp_path))[1][-1]
    assert (time, line) == ((tmp_path / "log").stat().st_mtime_ns, b"and late\n")


@settings(max_examples=tries(5, 2000), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bursts=st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=25),
    tail=st.none() | st.integers(0, 20),
    since=st.none() | st.integers(0, 26),
    after=st.integers(0, 25),
)
async def test_output_through_moves_of_the_log(
    clock: Clock,
    tmp_path: Path,
    bursts: list[tuple[int, bool, bool]],
    tail: int | None,
    since: int | None,
    after: int,
) -> None:
    """Bursts of lines and parts of lines, some looks missed: against a list of lines with their times."""
    for old in tmp_path.iterdir():
        old.unlink()
    index, cap = Times(), 120
    index.note(0)
    written, seen = b"", list[tuple[int, int]]()
    moved = at_burst = 0
    for number, (length, whole, looks) in enumerate(bursts, 1):
        burst = b"x" * length + b"\n" * whole
        write(tmp_path, burst)
        written += burst
        if number == after:
            at_burst = len(written)
        if looks:
            clock.now = number * SECOND
            seen.append((clock.now, len(written)))
            if len(written) - moved > cap:
                moved = len(written)
            look_at_log(index, cap)
    aside = tmp_path / "log.1"
    begin = moved - (aside.stat().st_size if aside.exists() else 0)
    kept, lines = await found(tmp_path)
    assert kept == written[begin:]
    place = begin
    for time, line in lines:
        place += len(line)
        assert time == next((one for one, size in seen if size >= place), time)
    if at_burst >= begin and at_burst:
        assert (await found(tmp_path, after=str(at_burst)))[0] == written[at_burst:]
    wanted = (await found(tmp_path, tail=tail, since=None if since is None else since * SECOND))[0]
    assert kept.endswith(wanted)
    if tail is not None:
        assert len(wanted.splitlines()) <= tail
        assert since is not None or len(wanted.splitlines()) == min(tail, len(kept.splitlines()))
    elif since is not None:
        # Of its lines none that is left out could be of that time, and the first one may be.
        before = len(written) - len(wanted)
        assert all(one < since * SECOND for one, size in seen if begin < size <= before)


async def test_a_reader_that_is_too_slow_learns_how_many_lines_it_missed(clock: Clock, tmp_path: Path) -> None:
    """Lines with their numbers, more of them than the log and the part before it keep."""
    index, cap, written = Times(), 2000, 0

    def goes_on(lines: int) -> None:
        nonlocal written
        write(tmp_path, b"".join(b"line %d\n" % number for number in range(written, written + lines)))
        written += lines
        look_at_log(index, cap)

    index.note(0)
    goes_on(50)
    live = True
    pieces = read_log(tmp_path, Wanted(follow=True, tail=20), lambda: live)
    shown, lost, marks = b"", [], []

    def take(piece: LogPiece) -> None:
        nonlocal shown
        shown += b"-" * bool(piece.lost) + plain(piece)
        lost.append((piece.lost, piece.lost_lines))
        marks.append(piece.mark)

    take(await anext(pieces))
    for lines in (300, 10, 1000, 3):  # The last ones stay in the log.
        goes_on(lines)
    live = False
    async for piece in pieces:
        take(piece)
    numbers = [[int(line.split()[1]) for line in part.splitlines()] for part in shown.decode().split("-")]
    assert numbers[0] == list(range(30, 50))
    assert numbers[-1] == list(range(numbers[-1][0], written))
    assert sum(found or 0 for _, found in lost) == written - 30 - sum(map(len, numbers))
    assert [bool(size) for size, _ in lost].count(True) == 1
    # One who comes back with an old mark learns it too; with one of an earlier agent's, only the size.
    again = [piece async for piece in read_log(tmp_path, Wanted(after=marks[0]), lambda: False)]
    assert (again[0].lost, again[0].lost_lines) == next(one for one in lost if one[0])
    again = [piece async for piece in read_log(tmp_path, Wanted(after=marks[0].partition(".")[0]), lambda: False)]
    assert (again[0].lost > 0, again[0].lost_lines) == (True, None)


async def test_lines_written_while_the_log_moves_count_as_missed(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Times()
    index.note(0)

    def meanwhile(name: str, mode: str) -> IO[bytes]:
        if name == "log.1.new":
            write(tmp_path, b"between\n" * 3)
        return cast("IO[bytes]", open(name, mode))

    write(tmp_path, b"line\n" * 10)
    live = True
    pieces = read_log(tmp_path, Wanted(follow=True), lambda: live)
    assert plain(await anext(pieces)) == b"line\n" * 10
    monkeypatch.setattr(supervisor, "open", meanwhile, raising=False)
    look_at_log(index, 20)
    write(tmp_path, b"after\n")
    live = False
    (last,) = [piece async for piece in pieces]
    assert (plain(last), last.lost, last.lost_lines) == (b"after\n", 24, 3)


async def test_lines_missed_in_several_moves_are_counted_where_they_are_missing(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some before the part moved aside, and some written while the log moved."""
    index, moves = Times(), 0
    index.note(0)

    def meanwhile(name: str, mode: str) -> IO[bytes]:
        nonlocal moves
        if name == "log.1.new":
            moves += 1
            write(tmp_path, b"between\n" * moves)
        return cast("IO[bytes]", open(name, mode))

    monkeypatch.setattr(supervisor, "open", meanwhile, raising=False)
    write(tmp_path, b"first\n" * 5)
    live = True
    pieces = read_log(tmp_path, Wanted(follow=True), lambda: live)
    await anext(pieces)
    for _ in range(3):
        write(tmp_path, b"second\n" * 10)
        look_at_log(index, 35)
    write(tmp_path, b"third\n")
    live = False
    found = [(plain(piece), piece.lost_lines) async for piece in pieces]
    assert found == [(b"second\n" * 4, 10 + 1 + 10 + 2 + 6), (b"third\n", 3)]


async def test_an_index_without_numbers_of_lines_says_only_how_much_is_missing(clock: Clock, tmp_path: Path) -> None:
    """The index of a supervisor of 0.6.0."""
    index = Times()
    index.note(0)
    write(tmp_path, b"line\n" * 10)
    live = True
    pieces = read_log(tmp_path, Wanted(follow=True), lambda: live)
    await anext(pieces)
    for _ in range(3):
        write(tmp_path, b"line\n" * 10)
        look_at_log(index, 20)
    write(tmp_path, b"line\n")
    index.note(5)
    data = (tmp_path / "times").read_bytes()
    (tmp_path / "times").write_bytes(b"\0" * 8 + data[8:])
    (tmp_path / "times.1").write_bytes((tmp_path / "times.1").read_bytes()[:-16])
    live = False
    found = [piece async for piece in pieces]
    assert (found[0].lost > 0, found[0].lost_lines) == (True, None)


def test_the_index_is_bounded_and_recent_times_are_exact() -> None:
    """A month of output: exact to a second for minutes, then to half a percent of the age."""
    notes, now = list[tuple[int, int]](), 0
    chance = random.Random(7)
    for number in range(40_000):
        now += chance.choice((1, 1, 1, 200)) * SECOND if number < 35_000 else SECOND
        notes.append((now, number + 1))
        if len(notes) > MOST:
            notes = thinned(notes)
    assert len(notes) <= MOST
    for (time, _), (following, _) in pairwise(notes):
        age = now - time
        assert following - time <= (SECOND if age < 300 * SECOND else max(200 * SECOND, age // 50))
    back = [(10**18 + number, number + 1) for number in range(MOST)]
    assert len(thinned([*back, (SECOND, MOST + 1)])) <= MOST, "a clock that was set back"
    assert len(thinned([(SECOND, number + 1) for number in range(MOST + 1)])) <= MOST, "one that stands still"


def test_a_torn_index_is_read_up_to_there_and_mended(clock: Clock, tmp_path: Path) -> None:
    index = Times()
    for size in (0, 10, 20):
        clock.now = (size + 1) * SECOND
        index.note(size)
    whole = (tmp_path / "times").read_bytes()
    (tmp_path / "times").write_bytes(whole[:-5])
    assert read((tmp_path / "times").read_bytes()) == (0, [(11 * SECOND, 10)])
    (tmp_path / "times").write_bytes(whole + b"\1\2\3")
    index.note(30)
    assert [position for _, position in read((tmp_path / "times").read_bytes())[1]] == [10, 20, 30]
    with pytest.raises(ValueError, match="beginning"):
        read(b"\0" * 15)


async def test_a_full_disk_harms_nothing(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Times()
    index.note(0)

    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Times, "_save", full)
        for number in (1, 2):
            write(tmp_path, b"line\n")
            clock.now = number * SECOND
            look_at_log(index)
    write(tmp_path, b"line\n")
    clock.now = 3 * SECOND
    look_at_log(index)
    assert [time // SECOND for time, _ in (await found(tmp_path))[1]] == [1, 2, 3]


async def test_only_the_last_time_is_known_for_containers_of_earlier_releases(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_bytes(b"one\n")
    write(tmp_path, b"two\nthree\n")
    last = (tmp_path / "log").stat().st_mtime_ns
    whole, lines = await found(tmp_path)
    assert whole == b"one\ntwo\nthree\n"
    assert {time for time, _ in lines} == {0}
    assert (await found(tmp_path, since=last))[0].endswith(b"two\nthree\n")
    assert (await found(tmp_path, since=last + SECOND))[0] == b""

    def goes_on() -> bool:
        if (tmp_path / "log").stat().st_size > 10:
            return False
        write(tmp_path, b"four\n")
        return True

    pieces = [piece async for piece in read_log(tmp_path, Wanted(follow=True, tail=1), goes_on)]
    assert b"".join(map(plain, pieces)) == b"three\nfour\n"
    assert pieces[-1].stretches[-1].data == b"four\n"
    assert pieces[-1].stretches[-1].time > 0
