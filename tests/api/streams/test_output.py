"""A container's output as events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dorm.api.resources import app_stories

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from dorm.api.streams import Stream


class Written:
    """A stream that keeps what is written to it."""

    def __init__(self) -> None:
        self.text = ""

    async def write(self, frames: list[bytes]) -> None:
        self.text += b"".join(frames).decode()


@pytest.mark.parametrize("timed", [False, True])
async def test_an_event_says_what_is_missing_right_before_the_lines_after_it(timed: bool) -> None:
    missed: list[dict[str, int | None]] = []
    stamp = b"2026-11-21T09:00:00.000Z " if timed else b""

    async def source() -> AsyncIterator[bytes]:
        yield stamp + b"one\n"
        missed.append({"lines": 7, "bytes": 63})
        yield stamp + b"nine\n"

    stream, request = Written(), cast("web.Request", SimpleNamespace(transport=None))
    output = app_stories._Output(source(), request, missed)
    serve: Any = app_stories._timed_lines if timed else app_stories._lines
    await serve(cast("Stream", stream), output, await output.next())
    events = [line.removeprefix("event: ") for line in stream.text.splitlines() if line.startswith("event: ")]
    assert events == ["line", "missed", "line", "end"]
    assert '{"lines":7,"bytes":63}' in stream.text.replace(" ", "")
