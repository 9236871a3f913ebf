"""Answers that are streams: opened, counted, and ended with a problem if something fails after they began."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.api.answers import POSITION, problem_of
from dorm.api.connections import SECURITY, address_of
from dorm.api.streams import Stream, frame
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from dorm.api.routes import Call


async def streamed(
    call: Call[Any, Any], serve: Callable[[Stream], Awaitable[None]], position: str
) -> web.StreamResponse:
    """Open a stream and let `serve` write to it until it ends. Raises TooMany, Unavailable, NotAcceptable."""
    services, request = call.services, call.request
    known = call.user if services.door.closed else ""
    with services.addresses.stream(address_of(request.transport), known):
        stream = Stream(request, services.options.limits)
        response = await stream.open({**SECURITY, POSITION: position})
        try:
            with services.door.watching(request, stream.end):
                await serve(stream)
        except ConnectionError:
            pass  # The reader has gone; one that comes back resumes.
        except DormError as error:
            with contextlib.suppress(ConnectionError):
                await stream.write([frame("", "problem", msgspec.json.encode(problem_of(error)))])
        finally:
            await stream.close()
        return response
