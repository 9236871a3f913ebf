"""The client for ordinary code."""

from __future__ import annotations

import functools
import http.client
import ssl
import time
from typing import TYPE_CHECKING, Any, TypeVar

from dorm.remote import past, steering, sweeping, verbs, wire
from dorm.remote.steps import Found, Open, Pause, whole

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Callable

    from typing_extensions import Concatenate, ParamSpec

    from dorm.remote.steps import Each, One

    P = ParamSpec("P")

T = TypeVar("T")
_PIECE = 65536
_FAILED = (OSError, http.client.HTTPException)


def _one(verb: Callable[P, One[T]]) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answers = self._perform(whole(verb(*args, **kwargs)))
        try:
            return next(answers)
        finally:
            answers.close()

    functools.update_wrapper(method, verb)
    return method


def _each(verb: Callable[P, Each[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._perform(verb(*args, **kwargs))

    functools.update_wrapper(method, verb)
    return method


class Client:
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

    def _perform(self, steps: Each[T]) -> Generator[T, None, None]:
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
                    time.sleep(step.seconds)
                else:
                    try:
                        value = line.open(step) if isinstance(step, Open) else line.read()
                    except _FAILED as error:
                        send, value = steps.throw, wire.broken(self._server, error)
        finally:
            steps.close()
            line.close()


class _Line:
    """One connection at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection: http.client.HTTPConnection | None = None
        self._answer: http.client.HTTPResponse

    def open(self, step: Open) -> wire.Head:
        """Raises OSError, HTTPException."""
        self.close()
        server, timeout = self._client._server, step.silence_s or self._client._timeout
        if server.tls:
            context = self._client._tls or ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(server.host, server.port, timeout=timeout, context=context)
        else:
            self._connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
        ask = step.ask
        headers = wire.headers_of(ask.headers, self._client._user)
        self._connection.request(ask.method, server.prefix + ask.path, ask.body or None, headers)
        self._answer = self._connection.getresponse()
        lowered = {name.lower(): value for name, value in self._answer.getheaders()}
        return wire.Head(self._answer.status, lowered)

    def read(self) -> bytes:
        """Raises OSError, HTTPException."""
        piece = self._answer.read1(_PIECE)
        if not piece and self._answer.length:
            raise http.client.IncompleteRead(piece, self._answer.length)
        return piece

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
