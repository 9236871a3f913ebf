"""Output of containers, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.cli.apps.lines import Printer, lines, print_all
from events.log.records import LogUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def chunks(*given: bytes, fails: bool = False) -> AsyncIterator[bytes]:
    for chunk in given:
        yield chunk
    if fails:
        raise LogUnavailable("the agent does not answer", code="agent.no_answer")


async def test_lines_are_put_together_and_one_without_an_end_is_cut() -> None:
    assert [one async for one in lines(chunks(b"a", b"b\nc\n\nd", b"e"))] == [b"ab", b"c", b"", b"de"]
    cut = [one async for one in lines(chunks(b"x" * 100_000, b"y" * 100_000))]
    assert max(map(len, cut)) == 65536
    assert b"".join(cut) == b"x" * 100_000 + b"y" * 100_000


async def test_of_all_ranks_what_can_be_read_is_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    good, bad = chunks(b"10%\r90%\r\nloss 1\n"), chunks(b"loss 2\n", fails=True)
    await print_all(Printer(11), [good, bad], follow=False)
    out, err = capfdbinary.readouterr()
    assert sorted(out.splitlines()) == [b"rank  0 | 90%", b"rank  0 | loss 1", b"rank  1 | loss 2"]
    assert err == b"error: rank 1: the agent does not answer [agent.no_answer]\n"
    await print_all(Printer(0, "loss 1"), [chunks(b"loss 1\nloss 2\n")], follow=True)
    assert capfdbinary.readouterr().out == b"loss 1\n"


async def test_a_reader_that_has_gone_ends_it_as_it_ends_other_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, _: bytes) -> None:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", type("Out", (), {"buffer": Gone()}))
    with pytest.raises(BrokenPipeError):
        await print_all(Printer(2), [chunks(b"a\n"), chunks(b"b\n")], follow=True)
