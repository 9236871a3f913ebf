"""Read a container's output with its times, as the engine keeps both.

The engine sends each of its messages as one frame: the time, a space, and the container's output, which is a line or a
part of 16 KiB of a longer one.  So a frame begins a line if the one before it ended one.

Its messages have no numbers from which reading could continue after a lost connection, and messages of stdout and
stderr may not be in the order of their times.  A mark therefore names a time up to two seconds back, and how many
messages since then have been read; the engine keeps their order.
"""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from agents.runtime.interface import Unavailable, Wanted, no_mark
from events.requests import LogPiece, LogStretch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from agents.runtime.docker.engine import Engine

_SECOND: Final = 10**9
_PIECE: Final = 64 * 1024
_STRETCH: Final = 16
"""Bytes that a stretch takes beside its data."""
_MARK: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,18})")


class Marks:
    """Where reading is: counts messages, by the whole second of their time."""

    def __init__(self, since: int | None, tail: int | None) -> None:
        """As the engine was asked: `since` in UTC ns.  Without it, and with a `tail`, which may leave out messages of later
        times than that, the position counts from the first message."""
        self._first = since if tail is None else None
        self._newest = 0
        self._counts: dict[int, int] = {}

    def read(self, time: int) -> None:
        """Count a message."""
        if self._first is None:
            self._first = time
        second = time // _SECOND
        if second > self._newest:
            self._newest = second
            self._counts = {one: count for one, count in self._counts.items() if one >= second - 1}
        if time >= self._first and second >= self._newest - 1:
            self._counts[second] = self._counts.get(second, 0) + 1

    @property
    def reached(self) -> bool:
        """Whether a message has been read."""
        return self._newest > 0

    def __str__(self) -> str:
        since = max((self._newest - 1) * _SECOND, self._first or 0)
        return f"{since}-{sum(self._counts.values())}"


async def read_logs(engine: Engine, name: str, wanted: Wanted) -> AsyncGenerator[LogPiece, None]:
    """Yield the output in pieces.  Raises `engine.Rejected`, `Unavailable`, and RuntimeFault for a mark that is none.

    An engine may end a followed answer when its container ends, and before the last message.  So the output is then
    read once more, from the position that was reached."""
    since, tail, skip = wanted.since, wanted.tail, 0
    if wanted.after:
        match = _MARK.fullmatch(wanted.after)
        if match is None:
            raise no_mark(wanted.after)
        since, tail, skip = int(match[1]), None, int(match[2])
    if since is not None:
        since = max(since, 0)
    marks = Marks(since, tail)
    async with contextlib.aclosing(_answer(engine, name, wanted.follow, tail, since, skip, marks)) as pieces:
        async for piece in pieces:
            yield piece
    if wanted.follow and (marks.reached or tail is None):
        async with contextlib.aclosing(read_logs(engine, name, Wanted(after=str(marks)))) as pieces:
            async for piece in pieces:
                yield piece


async def _answer(
    engine: Engine, name: str, follow: bool, tail: int | None, since: int | None, skip: int, marks: Marks
) -> AsyncGenerator[LogPiece, None]:
    """Yield one answer of the engine, without its first `skip` messages."""
    stretches, size = list[LogStretch](), 0
    async with contextlib.aclosing(engine.logs(name, follow=follow, tail=tail, since=since)) as batches:
        async for batch in batches:
            for payload in batch:
                time, data = divided(payload)
                marks.read(time)
                if skip:
                    skip -= 1
                    continue
                stretches.append(LogStretch(time, data))
                size += len(data) + _STRETCH
                if size >= _PIECE:
                    yield LogPiece(stretches, str(marks))
                    stretches, size = [], 0
            if stretches:
                yield LogPiece(stretches, str(marks))
                stretches, size = [], 0


def divided(payload: bytes) -> tuple[int, bytes]:
    """Return time (UTC ns) and data of one of the engine's messages. Raises Unavailable if it has no time."""
    stamp, space, data = payload.partition(b" ")
    try:
        whole, _, fraction = stamp.decode("ascii").rstrip("Z").partition(".")
        seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
        time = seconds * _SECOND + int(fraction.ljust(9, "0")[:9])
    except ValueError:
        space = b""
        time = 0
    if not space:
        raise Unavailable("the engine has sent output without a time", code="container.logs.malformed")
    return time, data
