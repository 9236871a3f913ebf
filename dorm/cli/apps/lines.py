"""The output of containers line by line: searched, with times, and of several containers beside each other.

Lines come as their containers' agents send them.  Lines of different containers are in the order of arrival; past lines
with times are merged by them, if the nodes' clocks agree.

A progress bar draws its states on one line, with a carriage return before each.  A followed line that has not ended shows its
last state as a line of its own, at most once a second.  If the output is no terminal, it is less often the longer the bar
lasts: a file gets a number of lines that grows with the logarithm of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import re
import sys
from typing import TYPE_CHECKING

from rich.text import Text

from dorm.cli.errors import complain, line
from dorm.cli.output import console, progress_console
from dorm.client.output import stamp
from events.errors import DormError, code_of
from events.quantities import MEMORY, humanize

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from dorm.client.output import Line

MOST_FOLLOWED = 256
"""Containers that one command follows, or merges: each is a subscription of its own, here and at its agent."""
_AT_ONCE = 64
"""Containers whose output is read at the same time."""
_BAR_S = 1.0
"""Seconds between two states of a progress bar."""
_BAR_PART = 0.1
"""If the output is no terminal: the same, as a part of the time that the bar has lasted."""
_MOVES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b[78DEHM]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x07\x08\x0b\x0c]")
"""What moves the cursor or clears a part of the screen, which holds lines of other containers too.  Colors stay."""
_UP = re.compile(rb"\x1b\[[0-9]*[AF]")
"""A line that ends above itself is drawn again and again, by several progress bars below each other."""
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
        bar = _Bar(console.is_terminal)
        async with contextlib.aclosing(_until_due(source, bar)) as found:
            async for one in found:
                if one is None or (one.whole and not _UP.search(one.text)):
                    self._put(one or bar.taken(), rank, bar)
                else:
                    bar.draw(one)
        if bar.waiting is not None and bar.waiting.whole:
            self._put(bar.taken(), rank, bar)

    def put(self, one: Line, rank: int) -> None:
        """Print a line, if it is wanted."""
        if (shown := self._shown(one)) is not None:
            sys.stdout.buffer.write(self._prefix(rank) + _stamp(one) + shown + b"\n")
            sys.stdout.buffer.flush()

    def _put(self, one: Line, rank: int, bar: _Bar) -> None:
        """Print a line, if it is wanted and not the state of the bar that is there already."""
        shown = self._shown(one) if bar.drawn else None
        if shown is None or shown != bar.shown:
            self.put(one, rank)
        bar.printed(one, shown)

    def _shown(self, one: Line) -> bytes | None:
        """Return a line as it is printed, None if it is not wanted.  Of a progress bar it is the last state: for a search, the
        last one that contains the text."""
        states = one.text.split(b"\r")
        if len(states) > 1:
            states = [state for state in states if state.strip()] or [b""]
        found = next((state for state in reversed(states) if self._wanted in state), None)
        return _MOVES.sub(b"", found) if found is not None and (self._prefixed or one.time is not None) else found

    def _prefix(self, rank: int) -> bytes:
        if not self._prefixed:
            return b""
        text = f"rank {rank:>{self._width}} | "
        # The leading 0 ends a color that another container's line has left on.
        return (f"\x1b[0;{_COLORS[rank % len(_COLORS)]}m{text}\x1b[0m" if self._colored else text).encode()


class _Bar:
    """The progress bar that a container draws on its last line, if any: when its next state is printed."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._began = 0.0
        """When it was drawn first, in the loop's time."""
        self._last = -math.inf
        """When a state was printed last; no faster for several bars after each other."""
        self.drawn = False
        self.waiting: Line | None = None
        """The last state that is not printed yet."""
        self.shown: bytes | None = None
        """The text that was printed last."""

    def draw(self, one: Line) -> None:
        """Take a new state."""
        if not self.drawn:
            self.drawn, self._began = True, asyncio.get_running_loop().time()
        self.waiting = one

    @property
    def due(self) -> float:
        """When the state that waits is printed, in the loop's time."""
        lasted = 0.0 if self._terminal else max(0.0, self._last - self._began)
        return self._last + max(_BAR_S, _BAR_PART * lasted)

    def taken(self) -> Line:
        """Return the state that waits."""
        assert self.waiting is not None
        return self.waiting

    def printed(self, one: Line, shown: bytes | None) -> None:
        """Note that a line was printed, which ends the bar unless it is a state of it."""
        if one is self.waiting:
            self._last = asyncio.get_running_loop().time()
        else:
            self.drawn = False
        self.waiting, self.shown = None, shown


async def _until_due(source: AsyncIterator[Line], bar: _Bar) -> AsyncGenerator[Line | None, None]:
    """Yield the lines, and None whenever the state of a bar that waits is due."""
    coming: asyncio.Task[Line | None] | None = None

    async def following() -> Line | None:
        return await anext(source, None)

    try:
        while True:
            if coming is None and bar.waiting is None:
                found = await following()  # A task for each line would take longer than the line.
            else:
                coming = coming or asyncio.create_task(following())
                if bar.waiting is not None:
                    left = bar.due - asyncio.get_running_loop().time()
                    await asyncio.wait({coming}, timeout=max(0.0, left))
                    if not coming.done() or left <= 0:
                        yield None
                        continue
                found, coming = await coming, None
            if found is None:
                return
            yield found
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


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


def report_missed(who: str, lines: int | None, size: int) -> None:
    """Say on stderr that output of a container is not shown."""
    amount = humanize(MEMORY, size)
    what = f"{lines:,} line{'' if lines == 1 else 's'} ({amount})" if lines else f"{amount} of output"
    is_ = "is" if not lines or lines == 1 else "are"
    progress_console.print(
        Text(f"… {who}: {what} {is_} not shown: written faster than read here, and no longer on the node"),
        soft_wrap=True,
    )


def _report(rank: int, error: DormError) -> None:
    complain(f"rank {rank}: {line(error)}", code_of(error))
