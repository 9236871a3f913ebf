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

import asyncio
import re
import secrets
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from yarl import URL

from dorm.api.answers import Answer, answer, problem_of
from dorm.api.errors import Invalid, Missing
from dorm.api.handlers import streamed
from dorm.api.resources import app_stories, events, moments
from dorm.api.routes import Call, Parameters, Route, read_query
from dorm.api.streams import CONTENT_TYPE, HEARTBEAT, Part, Stream, frame

if TYPE_CHECKING:
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


# --- an open stream ---------------------------------------------------------------------------------------------------


class Shared:
    """An open stream with its parts."""

    def __init__(self, user: str, request: web.Request, stream: Stream) -> None:
        self.user = user
        self._request = request
        self._stream = stream
        self._parts: dict[str, asyncio.Task[None]] = {}

    @property
    def parts(self) -> list[str]:
        return sorted(self._parts)

    def follow(self, services: Services, parts: dict[str, Followed]) -> None:
        """Begin these parts, in place of those of the same names.  Raises Invalid for too many."""
        if len({*self._parts, *parts}) > _MOST_PARTS:
            raise Invalid(f"a stream has at most {_MOST_PARTS} parts", code="api.streams.too_many")
        self.end(list(parts))
        for name, followed in parts.items():
            self._parts[name] = asyncio.create_task(self._run(services, name, followed), name=f"part {name}")

    def end(self, names: list[str]) -> None:
        for name in names:
            if (task := self._parts.pop(name, None)) is not None:
                task.cancel()

    def finish(self) -> None:
        """End it gracefully: its reader opens another one."""
        self._stream.finish()

    async def close(self) -> None:
        tasks = list(self._parts.values())
        self.end(list(self._parts))
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, services: Services, name: str, followed: Followed) -> None:
        part = Part(self._stream, name)
        try:
            try:
                await self._serve(services, part, followed)
                last = frame("", "over", b"{}")
            except ConnectionError:
                return
            except Exception as error:
                last = frame("", "problem", msgspec.json.encode(problem_of(error)))
            if self._parts.get(name) is asyncio.current_task():
                del self._parts[name]
                await part.write([last])
        except ConnectionError:
            return

    async def _serve(self, services: Services, part: Part, followed: Followed) -> None:
        """Raises Invalid for a path that is none of a stream, and what the route raises."""
        url = URL(followed.path, encoded=True)
        route, names = _route_of(url)
        headers = {"Accept": CONTENT_TYPE, "Host": self._request.headers.get("Host", "")}
        if followed.last:
            headers["Last-Event-ID"] = followed.last
        request = self._request.clone(method="GET", rel_url=url, headers=headers)
        query = read_query(request, route.query)
        call: Call[Any, Any] = Call(services, request, query, None, self.user, names=names, part=part)
        await route.handler(call)


@cache
def _routes() -> list[tuple[re.Pattern[str], Route]]:
    routes = [*moments.ROUTES, *events.ROUTES, *app_stories.ROUTES]
    return [
        (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(route.path))), route)
        for route in routes
        if route.operation in _PARTS
    ]


def _route_of(url: URL) -> tuple[Route, dict[str, str]]:
    """Return the route of a path, and the parts of the path.  Raises Invalid."""
    for pattern, route in _routes():
        if (matching := pattern.fullmatch(url.raw_path)) is not None:
            return route, {
                name: URL(f"/{value}", encoded=True).path[1:] for name, value in matching.groupdict().items()
            }
    raise Invalid(
        f"{url.raw_path[:80]!r} is no stream that can be a part of another one", code="api.stream.not_shareable"
    )


# --- routes -----------------------------------------------------------------------------------------------------------


async def open_streams(call: Call[Parameters, Opened]) -> web.StreamResponse:
    """One stream with several parts, each of which is the stream of another route.  The event `stream` has its name, with
    which parts begin and end later; `part` names the part that the following events belong to; `over` and `problem` end a
    part."""
    services, name = call.services, secrets.token_urlsafe(18)
    beat_s = services.options.limits.heartbeat_s

    async def serve(stream: Stream) -> None:
        shared = services.shared[name] = Shared(call.user, call.request, stream)
        try:
            await stream.write([frame("", "stream", msgspec.json.encode({"stream": name}))])
            shared.follow(services, call.body.follow)
            while True:
                try:
                    async with asyncio.timeout(beat_s):
                        await stream.over()
                    return
                except TimeoutError:
                    await stream.write([HEARTBEAT])
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
    shared.follow(services, body.follow)
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
