"""Output of containers, line by line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dorm.cli.attached import Printer, print_all, print_merged
from dorm.cli.output import console
from dorm.client.output import Line, lines, timed_lines
from events.log.records import LogUnavailable
from events.requests import LogPiece, LogStretch
from tests.simulation.world.loop import Loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


async def chunks(*given: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for chunk in given:
        yield chunk
    if fails:
        raise LogUnavailable("the agent does not answer", code="agent.no_answer")


async def test_lines_are_put_together_and_one_without_an_end_is_cut() -> None:
    assert [one.text async for one in lines(chunks(b"a", b"b\nc\n\nd", b"e"))] == [b"ab", b"c", b"", b"de"]
    cut = [one.text async for one in lines(chunks(b"x" * 100_000, b"y" * 100_000))]
    assert max(map(len, cut)) == 65536
    assert b"".join(cut) == b"x" * 100_000 + b"y" * 100_000


async def test_the_readable_output_of_all_ranks_is_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    good, bad = lines(chunks(b"10%\r90%\r\nloss 1\n")), lines(chunks(b"loss 2\n", fails=True))
    await print_all(Printer(11), [good, bad], follow=False)
    out, err = capfdbinary.readouterr()
    assert sorted(out.splitlines()) == [b"rank  0 | 90%", b"rank  0 | loss 1", b"rank  1 | loss 2"]
    assert err == b"error: rank 1: the agent does not answer [agent.no_answer]\n"
    await print_all(Printer(0, "loss 1"), [lines(chunks(b"loss 1\nloss 2\n"))], follow=True)
    assert capfdbinary.readouterr().out == b"loss 1\n"


async def as_drawn(*chunks: bytes, seconds: float = 0.1, at_end: float = 0.0) -> AsyncIterator[bytes]:
    """Output whose chunks come a while after each other, in virtual time."""
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(seconds)
    await asyncio.sleep(at_end)


def drawn(ticks: int, epoch: int = 1) -> list[bytes]:
    return [b"\repoch %d: %d%%" % (epoch, 100 * tick // ticks) for tick in range(1, ticks + 1)]


def in_virtual_time(work: Coroutine[None, None, None]) -> None:
    loop = Loop()  # type: ignore[abstract]
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


def shown_of(capfdbinary: pytest.CaptureFixture[bytes]) -> list[str]:
    return capfdbinary.readouterr().out.decode().splitlines()


def test_a_bar_shows_its_last_state_at_most_once_a_second_and_container(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    bars = [as_drawn(b"begins\n", *drawn(20), b"\n", b"over\n"), as_drawn(*drawn(20), b"\nover\n")]
    in_virtual_time(print_all(Printer(2), [lines(bar, bars=True) for bar in bars], follow=True))
    found = shown_of(capfdbinary)
    assert [line.removeprefix("rank 0 | ") for line in found if line.startswith("rank 0")] == [
        "begins", "epoch 1: 5%", "epoch 1: 50%", "epoch 1: 100%", "over",
    ]  # fmt: skip
    assert len([line for line in found if line.startswith("rank 1")]) == 4
    assert all("\r" not in line for line in found)


def test_a_bar_that_rests_shows_where_it_rests(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The state after the first one is shown though no further output comes; and a bar that rests is not repeated."""
    bar = as_drawn(b"\r1%", b"\r2%", at_end=60.0)
    in_virtual_time(print_all(Printer(1), [lines(bar, bars=True)], follow=True))
    assert shown_of(capfdbinary) == ["rank 0 | 1%", "rank 0 | 2%"]


def test_without_a_terminal_a_long_bar_takes_few_lines(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = [b"\rstep %d" % step for step in range(36_000)]
    in_virtual_time(print_all(Printer(1), [lines(as_drawn(*hour), bars=True)], follow=True))
    assert len(shown_of(capfdbinary)) in range(50, 100)
    monkeypatch.setattr(console, "_force_terminal", True)
    in_virtual_time(print_all(Printer(1), [lines(as_drawn(*hour[:3000]), bars=True)], follow=True))
    assert len(shown_of(capfdbinary)) in range(295, 305)


def test_bars_keep_to_their_prefixes_whatever_they_write(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Bars below each other end each line above itself; others go back by backspaces, or clear the screen."""
    inner = [b"\n\rinner %d%%\x1b[A" % number for number in range(0, 100, 2)]
    bar = as_drawn(b"\router 0%", *inner, b"\n\x1b[2K\r\x1b[31mred\x1b[0m\b\b\x1b[3;1Hx\x1b]0;title\x07\n")
    in_virtual_time(print_all(Printer(1), [lines(bar, bars=True)], follow=True))
    found = shown_of(capfdbinary)
    assert found[0] == "rank 0 | outer 0%"
    assert found[-1] == "rank 0 | \x1b[31mred\x1b[0mx"
    assert 5 <= len(found) <= 10
    assert all(line.startswith("rank 0 | inner ") for line in found[1:-1])


def test_a_search_and_times_see_the_states_of_bars(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    bar = as_drawn(b"begins\n", b"\r1% loss=3\r", b"\r2% loss=2", b"\r3%", b"\n", at_end=2.0)
    in_virtual_time(print_all(Printer(0, "loss="), [lines(bar, bars=True)], follow=True))
    assert shown_of(capfdbinary) == ["1% loss=3", "2% loss=2"]
    second = 10**9

    async def timed() -> AsyncIterator[LogPiece]:
        for at, data in ((1, b"\r1%"), (5, b"\r2%"), (9, b"\r3%\n")):
            yield LogPiece([LogStretch(at * second, data)], "")
            await asyncio.sleep(2.0)

    in_virtual_time(Printer(0).print(timed_lines(timed(), bars=True), 0))
    stamps = [line.split() for line in shown_of(capfdbinary)]
    assert [(at[17:19], text) for at, text in stamps] == [("01", "1%"), ("05", "2%"), ("01", "3%")]


async def test_a_bar_longer_than_a_line_may_be_is_cut_between_states() -> None:
    states = drawn(10_000)
    found = [one async for one in lines(chunks(b"".join(states)), bars=True)]
    assert b"".join(one.text for one in found[:-2]) in b"".join(states)
    assert all(not one.whole and one.text.startswith(b"\repoch") for one in found[:-1])
    assert found[-1].whole


async def pieces(*stretches: tuple[int, bytes]) -> AsyncIterator[LogPiece]:
    for time, data in stretches:
        yield LogPiece([LogStretch(time, data)], "")


async def test_a_line_has_the_time_of_its_start() -> None:
    found = [one async for one in timed_lines(pieces((1, b"a\nb"), (2, b"b\nc\n"), (3, b"d\n"), (0, b"\ne")))]
    assert found == [Line(b"a", 1), Line(b"bb", 1), Line(b"c", 2), Line(b"d", 3), Line(b"", 0), Line(b"e", 0)]
    cut = [one async for one in timed_lines(pieces((1, b"x" * 70_000), (2, b"x\ny")))]
    assert [(len(one.text), one.time) for one in cut] == [(65536, 1), (4465, 1), (1, 2)]


async def test_lines_of_all_ranks_are_merged_by_time(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A line of unknown time follows its predecessor, and a clock that was set back changes no rank's own order."""
    second = 10**9
    outputs = [
        pieces((0, b"old\n"), (5 * second, b"a5\n"), (2 * second, b"a2\n"), (0, b"a?\n"), (9 * second, b"a9\n")),
        pieces((4 * second + 7_000_000, b"b4\nb4'\n"), (6 * second, b"b6")),
        pieces(),
    ]
    await print_merged(Printer(3, "b4"), [timed_lines(one) for one in outputs])
    assert capfdbinary.readouterr().out == (
        b"rank 1 | 1970-01-01T00:00:04.007Z b4\nrank 1 | 1970-01-01T00:00:04.007Z b4'\n"
    )
    outputs = [
        pieces((0, b"old\n"), (5 * second, b"a5\n"), (2 * second, b"a2\n"), (0, b"a?\n"), (9 * second, b"a9\n")),
        pieces((4 * second + 7_000_000, b"b4\nb4'\n"), (6 * second, b"b6")),
        timed_lines_fail(),
    ]
    await print_merged(Printer(3), [timed_lines(one) for one in outputs])
    out, err = capfdbinary.readouterr()
    assert [line.split()[-1] for line in out.splitlines()] == [b"old", b"b4", b"b4'", b"a5", b"a2", b"a?", b"b6", b"a9"]
    assert out.startswith(b"rank 0 | -                        old\n")
    assert err == b"error: rank 2: the agent does not answer [agent.no_answer]\n"


async def timed_lines_fail() -> AsyncIterator[LogPiece]:
    raise LogUnavailable("the agent does not answer", code="agent.no_answer")
    yield LogPiece([], "")


async def test_a_closed_pipe_ends_output_with_a_broken_pipe_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, _: bytes) -> None:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", type("Out", (), {"buffer": Gone()}))
    with pytest.raises(BrokenPipeError):
        await print_all(Printer(2), [lines(chunks(b"a\n")), lines(chunks(b"b\n"))], follow=True)
