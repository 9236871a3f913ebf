"""The client for asyncio: like `dorm.remote.client`, with `await` and `async for`."""

from __future__ import annotations

import asyncio
import functools
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

from dorm.remote import past, steering, sweeping, verbs, wire
from dorm.remote.steps import Found, Open, Pause, whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
    from typing import Callable

    from typing_extensions import Concatenate, ParamSpec

    from dorm.remote.steps import Each, One

    P = ParamSpec("P")

T = TypeVar("T")
_FAILED = (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError)


def _one(verb: Callable[P, One[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answers = self._perform(whole(verb(*args, **kwargs)))
        try:
            return await answers.__anext__()
        finally:
            await answers.aclose()

    functools.update_wrapper(method, verb)
    return method


def _each(verb: Callable[P, Each[T]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return self._perform(verb(*args, **kwargs))

    functools.update_wrapper(method, verb)
    return method


class AsyncClient:
    """One user's view of one cluster, through its HTTP API."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        timeout: float = wire.TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`url`: of `dorm serve`.  Raises RemoteError if it is not a URL."""
        self._server = wire.server_of(url)
        self._user = user
        self._timeout = timeout
        self._tls = tls

    submit = _one(verbs.submit)
    app = _one(verbs.app)
    apps = _each(verbs.apps)
    nodes = _each(verbs.nodes)
    update = _one(verbs.update)
    cancel = _one(verbs.cancel)
    kill = _one(verbs.kill)
    retry = _one(steering.retry)
    restart = _one(steering.restart)
    hold = _one(steering.hold)
    release = _one(steering.release)
    spec = _one(steering.spec)
    edit = _one(steering.edit)
    try_edit = _one(steering.try_edit)
    submit_sweep = _one(sweeping.submit_sweep)
    sweeps = _each(sweeping.sweeps)
    sweep = _one(sweeping.sweep)
    wait_sweep = _one(sweeping.wait_sweep)
    cancel_sweep = _one(sweeping.cancel_sweep)
    history = _each(past.history)
    compare = _one(past.compare)
    checkpoints = _one(past.checkpoints)
    drain = _one(verbs.drain)
    trust = _one(verbs.trust)
    plan = _one(verbs.plan)
    get = _one(verbs.get)
    wait = _one(verbs.wait)
    logs = _each(verbs.logs)
    events = _each(verbs.events)

    async def _perform(self, steps: Each[T]) -> AsyncGenerator[T, None]:
        """Perform a verb step by step, and yield what it finds."""
        line = _Line(self)
        send: Callable[[Any], Any] = steps.send
        value: Any = None
        try:
            while True:
                try:
                    step = send(value)
                except StopIteration:
                    return
                send, value = steps.send, None
                if isinstance(step, Found):
                    yield step.item
                elif isinstance(step, Pause):
                    line.close()
                    await asyncio.sleep(step.seconds)
                else:
                    try:
                        value = await (line.open(step) if isinstance(step, Open) else line.read())
                    except _FAILED as error:
                        send, value = steps.throw, wire.broken(self._server, error)
        finally:
            steps.close()
            line.close()


class _Line:
    """One connection at a time."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._writer: asyncio.StreamWriter | None = None
        self._pieces: AsyncIterator[bytes]

    async def open(self, step: Open) -> wire.Head:
        """Raises what `_FAILED` lists."""
        self.close()
        server = self._client._server
        tls = (self._client._tls or ssl.create_default_context()) if server.tls else None
        opening = asyncio.open_connection(server.host, server.port, ssl=tls)
        reader, writer = await asyncio.wait_for(opening, self._client._timeout)
        self._writer = writer
        ask = step.ask
        headers = {
            "Host": server.name,
            "Connection": "close",
            "Content-Length": str(len(ask.body)),
            **wire.headers_of(ask.headers, self._client._user),
        }
        lines = [f"{ask.method} {server.prefix}{ask.path} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + ask.body)
        await asyncio.wait_for(writer.drain(), self._client._timeout)
        raw = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), self._client._timeout)
        head = wire.head_of(raw[:-4])
        self._pieces = _pieces(reader, head, step.silence_s or self._client._timeout)
        return head

    async def read(self) -> bytes:
        """Raises what `_FAILED` lists."""
        try:
            return await self._pieces.__anext__()
        except StopAsyncIteration:
            return b""

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def _pieces(reader: asyncio.StreamReader, head: wire.Head, timeout: float) -> AsyncIterator[bytes]:
    """Yield the body.  Raises EOFError if it ends early, TimeoutError for one that is silent."""
    if head.headers.get("transfer-encoding", "").lower() != "chunked":
        left = int(head.headers.get("content-length", "0"))
        if left:
            yield await asyncio.wait_for(reader.readexactly(left), timeout)
        return
    while True:
        size = int((await asyncio.wait_for(reader.readuntil(b"\r\n"), timeout)).split(b";")[0], 16)
        chunk = await asyncio.wait_for(reader.readexactly(size + 2), timeout)
        if not size:
            return
        yield chunk[:-2]
