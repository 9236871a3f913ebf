"""The output of containers line by line: searched, with times, and of several containers beside each other.

Lines come as their containers' agents send them.  Lines of different containers are in the order of arrival; past lines
with times are merged by them, if the nodes' clocks agree.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from typing import TYPE_CHECKING

from dorm.cli.errors import complain, line
from dorm.cli.output import console
from dorm.client.output import stamp
from events.errors import DormError, code_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from dorm.client.output import Line

MOST_FOLLOWED = 256
"""Containers that one command follows, or merges: each is a subscription of its own, here and at its agent."""
_AT_ONCE = 64
"""Containers whose output is read at the same time."""
_COLORS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Printer:
    """Prints lines to standard output, at once."""

    def __init__(self, ranks: int, wanted: str = "") -> None:
        """`ranks`: how many containers print here, 0 for no prefixes.  `wanted`: print only lines that contain this text."""
        self._width = len(str(max(0, ranks - 1)))
        self._prefixed = ranks > 0
        self._colored = console.is_terminal and not console.no_color
        self._wanted = wanted.encode("utf-8", "surrogateescape")

    async def print(self, source: AsyncIterator[Line], rank: int) -> None:
        """Print the lines of one container as they come."""
        async for one in source:
            self.put(one, rank)

    def put(self, one: Line, rank: int) -> None:
        """Print a line, if it is wanted."""
        if self._wanted not in one.text:
            return
        prefix = self._prefix(rank)
        # Of a progress bar only the last state has room beside a prefix.
        shown = one.text.rstrip(b"\r").rpartition(b"\r")[2] if prefix else one.text
        sys.stdout.buffer.write(prefix + _stamp(one) + shown + b"\n")
        sys.stdout.buffer.flush()

    def _prefix(self, rank: int) -> bytes:
        if not self._prefixed:
            return b""
        text = f"rank {rank:>{self._width}} | "
        # The leading 0 ends a color that another container's line has left on.
        return (f"\x1b[0;{_COLORS[rank % len(_COLORS)]}m{text}\x1b[0m" if self._colored else text).encode()


def _stamp(one: Line) -> bytes:
    return b"" if one.time is None else stamp(one.time).encode() + b" "


async def print_all(printer: Printer, outputs: Sequence[AsyncIterator[Line]], *, follow: bool) -> None:
    """Print the output of all ranks as it comes; a rank that can't be read is reported, and the others continue.  With
    `follow` all are read at the same time.  Raises BrokenPipeError if the output's reader is gone."""
    free = asyncio.Semaphore(len(outputs) if follow else _AT_ONCE)

    async def one(rank: int, source: AsyncIterator[Line]) -> None:
        async with free:
            try:
                await printer.print(source, rank)
            except DormError as error:
                _report(rank, error)

    try:
        async with asyncio.TaskGroup() as tasks:
            for rank, source in enumerate(outputs):
                tasks.create_task(one(rank, source))
    except BaseExceptionGroup as failed:
        if failed.subgroup(BrokenPipeError) is None:
            raise
        raise BrokenPipeError from None


async def print_merged(printer: Printer, outputs: Sequence[AsyncIterator[Line]]) -> None:
    """Print the lines of all ranks in the order of their times; a line of unknown time follows the one before it.  A rank that
    can't be read is reported, and the others continue."""

    async def following(rank: int, source: AsyncIterator[Line], after: int) -> tuple[int, int, Line] | None:
        try:
            found = await anext(source, None)
        except DormError as error:
            _report(rank, error)
            return None
        # The order of one rank's own lines stays.
        return None if found is None else (max(after, found.time or 0), rank, found)

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(following(rank, source, 0)) for rank, source in enumerate(outputs)]
    first = [result for task in asked if (result := task.result()) is not None]
    heapq.heapify(first)
    while first:
        time, rank, found = first[0]
        printer.put(found, rank)
        coming = await following(rank, outputs[rank], time)
        if coming is None:
            heapq.heappop(first)
        else:
            heapq.heapreplace(first, coming)


def _report(rank: int, error: DormError) -> None:
    complain(f"rank {rank}: {line(error)}", code_of(error))
