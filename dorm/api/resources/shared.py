"""Several streams over one connection, which change while it is open.

A browser opens six connections to a host and shares them among its tabs, so a stream for each thing that a tab shows would
leave none for requests.  One stream (`POST /v1/streams`) has parts instead: what `/v1/view/changes`, `/v1/events/stream` and
`/v1/apps/{app}/logs` would send, as these routes send it, each behind an event that names it:

    event: stream    {"stream": …}: its name, with which its reader adds and ends parts (`POST /v1/streams/{stream}`)
    event: part      the name of the part that the following events belong to
    event: over      this part has ended
    event: problem   the same, with the reason

A part counts as a stream, is allowed what its route allows, and resumes at `last` as its route does by `Last-Event-ID`.
A stream is known to its process alone.  A reader whose change another process does not know (404) opens a new stream with
all its parts: nothing of them is lost.
"""

from __future__ import annotations

import re
import secrets
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

import msgspec
from yarl import URL

from dorm.api.errors import Invalid, Missing
from dorm.api.handlers import streamed
from dorm.api.resources import events
from dorm.api.responses import Answer, answer
from dorm.api.routes import ALL, Call, Parameters, Route, read_query
from dorm.api.streams import CONTENT_TYPE, Part, Shared, Stream, frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiohttp import web

    from dorm.api.services import Services

_MOST_PARTS = 64
_PARTS = ("follow_view", "stream_events", "app_logs")
"""Operations whose streams can be parts."""


# --- what is asked for ------------------------------------------------------------------------------------------------

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class Followed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a stream."""

    path: Annotated[
        str,
        msgspec.Meta(
            pattern="^/v1/",
            max_length=8000,
            description="The path and query of the stream, such as /v1/events/stream?app=x",
        ),
    ]
    last: Annotated[
        str,
        msgspec.Meta(
            pattern=rf"^$|{events.POSITION}", max_length=40, description="The id of the last event that was read of it."
        ),
    ] = ""


Parts = Annotated[dict[Name, Followed], msgspec.Meta(max_length=_MOST_PARTS, description="The parts by name.")]


class Opened(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first parts of a stream."""

    follow: Parts = {}


class Changed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parts that begin and parts that end."""

    follow: Parts = {}
    end: Annotated[list[Name], msgspec.Meta(max_length=_MOST_PARTS, description="Names of parts.")] = []


class Following(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a stream."""

    parts: list[str]


# --- parts ---------------------------------------------------------------------------------------------------


def _served(services: Services, user: str, opened: web.Request, followed: Followed) -> Callable[[Part], Awaitable[Any]]:
    """Return what writes a part of a stream, which a request has opened.  Writing raises Invalid for a path that is none of a
    stream, and what its route raises."""

    async def serve(part: Part) -> None:
        url = URL(followed.path, encoded=True)
        route, names = _route_of(opened.app[ALL], url)
        headers = {"Accept": CONTENT_TYPE, "Host": opened.headers.get("Host", "")}
        if followed.last:
            headers["Last-Event-ID"] = followed.last
        request = opened.clone(method="GET", rel_url=url, headers=headers)
        query = read_query(request, route.query)
        call: Call[Any, Any] = Call(services, request, query, None, user, names=names, part=part)
        await route.handler(call)

    return serve


def _route_of(routes: Sequence[Route], url: URL) -> tuple[Route, dict[str, str]]:
    """Return the route of a path, and the parts of the path.  Raises Invalid."""
    for route in routes:
        if route.operation in _PARTS and (matching := _pattern(route.path).fullmatch(url.raw_path)) is not None:
            return route, {name: unquote(value) for name, value in matching.groupdict().items()}
    raise Invalid(
        f"{url.raw_path[:80]!r} is no stream that can be a part of another one", code="api.stream.not_shareable"
    )


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path))


# --- routes -----------------------------------------------------------------------------------------------------------


def _parts(
    call: Call[Any, Any], shared: Shared, follow: dict[str, Followed]
) -> dict[str, Callable[[Part], Awaitable[Any]]]:
    """Return what writes these parts.  Raises Invalid for too many."""
    if len({*shared.parts, *follow}) > _MOST_PARTS:
        raise Invalid(f"a stream has at most {_MOST_PARTS} parts", code="api.streams.too_many")
    return {name: _served(call.services, call.user, shared.request, followed) for name, followed in follow.items()}


async def open_streams(call: Call[Parameters, Opened]) -> web.StreamResponse:
    """One stream with several parts, each of which is the stream of another route.  The event `stream` has its name, with
    which parts begin and end later; `part` names the part that the following events belong to; `over` and `problem` end a
    part."""
    services, name = call.services, secrets.token_urlsafe(18)
    beat_s = services.options.limits.heartbeat_s

    async def serve(stream: Stream) -> None:
        services.shared[name] = shared = Shared(call.user, call.request, stream)
        try:
            await stream.write([frame("", "stream", msgspec.json.encode({"stream": name}))])
            shared.follow(_parts(call, shared, call.body.follow))
            await shared.run(beat_s)
        finally:
            del services.shared[name]
            await shared.close()

    return await streamed(call, serve, str(services.follower.seq))


async def change_streams(call: Call[Parameters, Changed]) -> Answer:
    """Begin and end parts of an open stream of the same user.  404 says that this process has no such stream: open a new one
    with all parts."""
    services, body = call.services, call.body
    shared = services.shared.get(call.path("stream"))
    if shared is None or shared.user != call.user:
        raise Missing("this process has no such stream; open a new one", code="api.stream.unknown")
    shared.end(body.end)
    shared.follow(_parts(call, shared, body.follow))
    return answer(Following(parts=shared.parts), services.follower.seq)


ROUTES = [
    Route(
        "POST", "/v1/streams", open_streams, "Follow several streams at once", body=Opened, tag="log", media=(CONTENT_TYPE,),
    ),
    Route(
        "POST", "/v1/streams/{stream}", change_streams, "Begin and end parts of a stream", body=Changed, answer=Following,
        tag="log",
    ),
]  # fmt: skip
