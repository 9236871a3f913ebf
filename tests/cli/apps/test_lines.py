"""Output of containers, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.cli.apps.lines import Printer, print_all, print_merged
from dorm.client.output import Line, lines, timed_lines
from events.log.records import LogUnavailable
from events.requests import LogPiece, LogStretch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


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
