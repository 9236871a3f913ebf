"""The output of containers line by line: searched, and of several containers beside each other.

Lines come as their containers' agents send them.  Output has no times, so the order between containers is that of arrival.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from dorm.cli.errors import complain, line
from dorm.cli.output import console
from events.errors import DormError, code_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_LONGEST = 1 << 16
"""Bytes of a line; a longer one is cut into several."""
MOST_FOLLOWED = 256
"""Containers that one command follows: each is a subscription of its own, here and at its agent."""
_AT_ONCE = 64
"""Containers whose output is read at the same time."""
_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of some output, each without its line break."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for one in whole:
            yield one
        while len(rest) >= _LONGEST:
            yield rest[:_LONGEST]
            rest = rest[_LONGEST:]
    if rest:
        yield rest


class Printer:
    """Prints lines to standard output, at once."""

    def __init__(self, ranks: int, wanted: str = "") -> None:
        """`ranks`: how many containers print here, 0 for no prefixes.  `wanted`: print only lines that contain this text."""
        self._width = len(str(max(0, ranks - 1)))
        self._prefixed = ranks > 0
        self._colored = console.is_terminal and not console.no_color
        self._wanted = wanted.encode("utf-8", "surrogateescape")

    async def print(self, chunks: AsyncIterator[bytes], rank: int) -> None:
        prefix = self._prefix(rank)
        async for one in lines(chunks):
            if self._wanted in one:
                # Of a progress bar only the last state has room beside a prefix.
                shown = one.rstrip(b"\r").rpartition(b"\r")[2] if prefix else one
                sys.stdout.buffer.write(prefix + shown + b"\n")
                sys.stdout.buffer.flush()

    def _prefix(self, rank: int) -> bytes:
        if not self._prefixed:
            return b""
        text = f"rank {rank:>{self._width}} | "
        # The leading 0 ends a color that another container's line has left on.
        return (f"\x1b[0;{_COLORS[rank % len(_COLORS)]}m{text}\x1b[0m" if self._colored else text).encode()


async def print_all(printer: Printer, outputs: Sequence[AsyncIterator[bytes]], *, follow: bool) -> None:
    """Print the output of all ranks as it comes; one that can't be read is reported, and the others go on.  With `follow` all
    are read at the same time.  Raises BrokenPipeError where nobody reads what is printed."""
    free = asyncio.Semaphore(len(outputs) if follow else _AT_ONCE)

    async def one(rank: int, chunks: AsyncIterator[bytes]) -> None:
        async with free:
            try:
                await printer.print(chunks, rank)
            except DormError as error:
                complain(f"rank {rank}: {line(error)}", code_of(error))

    try:
        async with asyncio.TaskGroup() as tasks:
            for rank, chunks in enumerate(outputs):
                tasks.create_task(one(rank, chunks))
    except BaseExceptionGroup as failed:
        if failed.subgroup(BrokenPipeError) is None:
            raise
        raise BrokenPipeError from None
