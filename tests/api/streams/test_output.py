"""A container's output as events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dorm.api.resources import output as resource
from dorm.client.output import Line

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
    query = resource.LogsQuery(timestamps=True)

    def line(text: bytes) -> bytes:
        written = resource.Written(0, Line(text, 1_700_000_000_000_000_000))
        return resource._event(query, written) if timed else text + b"\n"

    async def source() -> AsyncIterator[bytes]:
        yield line(b"one")
        missed.append({"lines": 7, "bytes": 63})
        yield line(b"nine")

    stream, request = Written(), cast("web.Request", SimpleNamespace(transport=None))
    output = resource._Output(source(), request, missed)
    serve: Any = resource._events if timed else resource._plain_lines
    await serve(cast("Stream", stream), output, await output.next())
    events = [line.removeprefix("event: ") for line in stream.text.splitlines() if line.startswith("event: ")]
    assert events == ["line", "missed", "line", "end"]
    assert '{"lines":7,"bytes":63}' in stream.text.replace(" ", "")
