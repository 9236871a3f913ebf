"""The server: the application, its sockets, and what starts and ends with it.

    async with serving(connection, Options()) as server:
        print(server.url)
        await server.run()

`run` follows the log until it is cancelled.  Leaving the block ends streams gracefully: their readers resume
elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from dorm.api import openapi, responses
from dorm.api.connections import SECURITY, Connection, Encryption, Hosts, check_origin
from dorm.api.errors import CannotListen, Unauthorized
from dorm.api.page import Page
from dorm.api.resources.process import checks_of
from dorm.api.resources.table import ROUTES
from dorm.api.responses import POSITION, Answer, answer
from dorm.api.routes import ALL, Call, Parameters, Route, handler_of
from dorm.api.services import Services, Tenants
from dorm.health.checks import Health
from dorm.health.pages import add_pages
from events.addresses import joined
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from dorm.api.clusters import Cluster
    from dorm.api.options import Options

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_END_S = 2.0
"""Seconds that requests in progress may take when the server ends."""
_BACKLOG = 1024
_PROBES = ("/healthz", "/readyz", "/v1/health", "/v1/ready")
"""Answered whatever name a probe uses for this machine: they say nothing that a page of another site could use."""
_PAGE = "list_apps"
"""The operation whose access the page needs: those who may list apps may load it."""
_CHALLENGES = (("WWW-Authenticate", 'Basic realm="dorm", charset="UTF-8"'), ("WWW-Authenticate", 'Bearer realm="dorm"'))


class Server:
    """A process's API on one address."""

    def __init__(self, services: Services, options: Options, renewed: asyncio.Event | None = None) -> None:
        """`renewed` is set when the certificate may be a new one; without that, the server sees it within seconds."""
        self.services = services
        self.tenants = Tenants(services)
        self.options = options
        self.url = ""
        """Address of the server; known once it listens."""
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._renewed = renewed if renewed is not None else asyncio.Event()

    async def listen(self) -> None:
        """Start to answer.  Raises CannotListen."""
        page = await asyncio.to_thread(Page.load, self.options.archive, self.options.embed_in)
        application = await asyncio.to_thread(_application, self.services, self.tenants, page)
        limits = self.options.limits
        self._runner = web.AppRunner(
            application, handle_signals=False, access_log=None, shutdown_timeout=_END_S, handler_cancellation=True
        )
        await self._runner.setup()
        manager = self._runner.server
        assert manager is not None
        loop = asyncio.get_running_loop()

        def connection() -> Connection:
            return Connection(
                manager,
                self.services.addresses,
                limits.head_s,
                loop=loop,
                access_log=None,
                keepalive_timeout=limits.idle_s,
                max_line_size=limits.line,
                max_field_size=limits.header,
                max_headers=limits.headers,
                lingering_time=1.0,
                auto_decompress=False,
            )

        encryption = await asyncio.to_thread(Encryption.of, self.options)
        where = joined(self.options.host, self.options.port)
        try:
            self._listening = await loop.create_server(
                connection,
                self.options.host,
                self.options.port,
                backlog=_BACKLOG,
                reuse_address=True,
                ssl=encryption,
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotListen(
                    f"{where} is in use; choose another with --listen", code="api.listen.in_use"
                ) from None
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise CannotListen(f"{where} cannot be listened on ({reason}); choose another with --listen") from None
        host, port = self._listening.sockets[0].getsockname()[:2]
        scheme = "http" if encryption is None else "https"
        self.url = f"{scheme}://{joined(host, port)}"
        if encryption is not None:
            self._renewing = asyncio.create_task(encryption.follow(self._renewed), name="certificate")

    async def run(self) -> None:
        """Follow the log until cancelled.  Raises LogClosed."""
        await self.services.run()

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
        self.tenants.close()
        self.services.events.finish()
        self.services.view.finish()
        for shared in list(self.services.shared.values()):
            shared.finish()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._listening is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._listening.wait_closed()


@contextlib.asynccontextmanager
async def serving(
    connection: Cluster,
    options: Options,
    clock: Callable[[], int] = time.time_ns,
    *,
    renewed: asyncio.Event | None = None,
) -> AsyncIterator[Server]:
    """Listen for the length of the block; `renewed` as for `Server`.  Raises CannotListen."""
    server = Server(Services(connection, options, clock), options, renewed)
    try:
        await server.listen()
        yield server
    finally:
        await server.close()


def _application(services: Services, tenants: Tenants, page: Page) -> web.Application:
    application = web.Application(middlewares=[_middleware(services)], client_max_size=services.options.limits.body)
    application[ALL] = ROUTES
    description = msgspec.json.encode(openapi.document(ROUTES))

    async def describe(call: Call[Parameters, None]) -> Answer:
        """The description of all routes."""
        return answer(msgspec.Raw(description), services.follower.seq, pack=call.packs)

    for route in (*ROUTES, Route("GET", "/v1/openapi.json", describe, "This description")):
        application.router.add_route(route.method, route.path, handler_of(route, services, tenants))
        if route.method == "GET" and not route.streams:
            application.router.add_route("HEAD", route.path, handler_of(route, services, tenants))
    health = Health(f"dorm {version('dorm')}", "the API starts")
    health.watch(checks_of(services))
    add_pages(application, health)
    application.router.add_get("/", page.index)
    application.router.add_get("/sign-in", page.sign_in)
    application.router.add_get("/assets/{path:.+}", page.asset)
    return application


def _middleware(services: Services) -> Any:
    """Return what every request passes: guards before the handler, a problem document for what fails, and a bound on how long
    the client may take for the answer."""
    hosts = Hosts(services.options)
    write_s = services.options.limits.write_s

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        made: web.StreamResponse
        try:
            if request.path not in _PROBES:
                hosts.check(request)
            check_origin(request)
            admitted = request.path != "/" or await _signed_in(request, services)
            made = await handler(request) if admitted else Page.to_sign_in(request)
        except (DormError, web.HTTPException, TimeoutError) as error:
            made = _refused(error, request)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            made = _refused(error, request)
        if made.prepared:
            return made
        made.headers.update(SECURITY)
        if request.path == "/" and services.options.embed_in:
            del made.headers["X-Frame-Options"]  # The page's policy names who may.
        made.headers.setdefault(POSITION, str(services.follower.seq))
        return await _written(request, made, write_s)

    return guarded


async def _signed_in(request: web.Request, services: Services) -> bool:
    """Return whether the dashboard opens for this browser, or asks for a sign-in first.  Raises Forbidden."""
    if services.door.closed:
        try:
            await services.door.admit(request, _PAGE)
        except Unauthorized:
            return False
    return True


def _refused(error: BaseException, request: web.Request) -> web.Response:
    kept = {"Allow": error.headers["Allow"]} if isinstance(error, web.HTTPMethodNotAllowed) else None
    made = responses.response(responses.problem_of(error), kept)
    if made.status == 401:
        # A browser that is asked for HTTP's basic authentication opens a dialog, and lets a script's request wait for it.
        by_script = request.headers.get("Sec-Fetch-Mode", "navigate") != "navigate"
        made.headers.extend(_CHALLENGES[1:] if by_script else _CHALLENGES)
    if made.status in (408, 413, 421):
        made.force_close()  # What is left of the request is not worth reading.
    return made


async def _written(request: web.Request, made: web.StreamResponse, seconds: float) -> web.StreamResponse:
    """Write an answer, and give up on a client that does not take it."""
    try:
        async with asyncio.timeout(seconds):
            await made.prepare(request)
            await made.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not take the answer") from None
    return made
