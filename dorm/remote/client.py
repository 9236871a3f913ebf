"""The client for ordinary code."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
from typing import TYPE_CHECKING, Any, TypeVar

from dorm.remote import asks, wire
from dorm.remote.answers import App, Event, Node, Stored, Submitted
from dorm.remote.errors import Problem, Unreachable, problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")


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
        """`url`: of `dorm serve`.  Raises RemoteError for one that is none."""
        self._server = wire.server_of(url)
        self._user = user
        self._timeout = timeout
        self._tls = tls

    # --- asking ---------------------------------------------------------------------------------------------------------

    def submit(self, spec: Mapping[str, Any] | str, *, key: str | None = None) -> Submitted:
        """Submit a spec, a document or YAML.  A repeat with the same `key` is the same app.  Raises Refused, Unsettled."""
        return self._do(asks.submit(spec, key))

    def app(self, name_or_id: str, *, at: str | None = None, min_seq: str | None = None) -> App:
        """Return an app, now or at a moment.  Raises NotFound."""
        return self._do(asks.app(name_or_id, at, min_seq))

    def apps(self, *, ended: bool = False, at: str | None = None) -> Iterator[App]:
        """Yield apps by submission."""
        after: str | None = "0"
        while after is not None:
            found, after = self._do(asks.apps(after, ended, at))
            yield from found

    def nodes(self, *, at: str | None = None) -> Iterator[Node]:
        """Yield nodes by name."""
        after: str | None = ""
        while after is not None:
            found, after = self._do(asks.nodes(after, at))
            yield from found

    def update(
        self, app: str, *, weight: float | None = None, n_min: int | None = None, n_max: int | None = None
    ) -> Stored:
        """Change weight or bounds.  Raises NotFound, Refused."""
        return self._do(asks.update(app, {"weight": weight, "n_min": n_min, "n_max": n_max}))

    def cancel(self, app: str, reason: str = "") -> Stored:
        """Request the app's end.  Raises NotFound, Refused."""
        return self._do(asks.cancel(app, reason))

    def drain(self, node: str, *, on: bool = True, reason: str = "") -> Stored:
        """Empty a node, or use it again.  Raises NotFound."""
        return self._do(asks.drain(node, on, reason))

    def plan(self, **assumed: Any) -> dict[str, Any]:
        """Return what the next decision would be, if something happened first (`submit`, `cancel`, `drain`, `policy`)."""
        return self._do(asks.plan(assumed))

    def get(self, path: str, **query: Any) -> Any:
        """Return anything that can be read: `get("apps/digits/story")`, `get("state", at="-10m")`."""
        return self._do(asks.get(path, query))

    def wait(self, app: str, *, min_seq: str | None = None) -> App:
        """Wait until the app has ended, and return it.  Raises NotFound."""
        found = self.app(app, min_seq=min_seq)
        if found.ended:
            return found
        position = str(found.document.get("position", "0"))
        for event in self.events(after=position, app=[found.id], kind=["AppCompleted", "AppFailed", "AppCancelled"]):
            found = self.app(found.id, min_seq=event.position.partition(".")[0])
            if found.ended:
                return found
        raise AssertionError("a stream that is resumed does not end")

    def logs(self, app: str, *, slot: int | None = None, tail: int | None = None) -> Iterator[bytes]:
        """Yield what a container has written so far.  Raises NotFound, Refused."""
        with self._open(asks.logs(app, slot, tail), self._timeout) as answer:
            while True:
                piece = answer.read1(65536)
                if not piece:
                    return
                yield piece

    # --- following ------------------------------------------------------------------------------------------------------

    def events(
        self,
        *,
        after: str | None = None,
        app: Sequence[str] = (),
        node: Sequence[str] = (),
        user: Sequence[str] = (),
        kind: Sequence[str] = (),
    ) -> Iterator[Event]:
        """Yield each event once and in order, from a position or from now on, without end, through outages.  Raises Problem
        where the request itself is refused."""
        filters = {"app": app, "node": node, "user": user, "kind": kind}
        failures = 0
        while True:
            try:
                with self._open(asks.events(after, filters), wire.SILENCE_S) as answer:
                    after = after or answer.headers.get("Dorm-Position")
                    frames = wire.Frames()
                    while True:
                        piece = answer.read1(65536)
                        if not piece:
                            break
                        for id, event, data in frames.feed(piece):
                            if event == "event":
                                failures = 0
                                yield Event.of(json.loads(data))
                                after = id
            except Problem as error:
                if error.status not in (429, 503):
                    raise
            except (OSError, http.client.HTTPException):
                pass
            failures += 1
            time.sleep(min(wire.PAUSE_S * failures, 10.0))

    # --- sending --------------------------------------------------------------------------------------------------------

    def _do(self, ask: asks.Ask[T]) -> T:
        for left in range(wire.TRIES - 1, -1, -1):
            try:
                connection, answer = self._send(ask, self._timeout)
                with contextlib.closing(connection):
                    body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                if not left or not ask.repeatable:
                    raise Unreachable(f"no server answers at {self._server.name} ({error})") from None
            else:
                document = wire.settled(answer.status, body, left, ask.repeatable)
                if document is not wire.AGAIN:
                    return ask.read(document)
            time.sleep(wire.PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _send(self, ask: asks.Ask[Any], timeout: float) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        server = self._server
        connection: http.client.HTTPConnection
        if server.tls:
            context = self._tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(server.host, server.port, timeout=timeout, context=context)
        else:
            connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
        try:
            headers = wire.headers_of(ask.headers, self._user)
            connection.request(ask.method, server.prefix + ask.path, ask.body or None, headers)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    @contextlib.contextmanager
    def _open(self, ask: asks.Ask[Any], timeout: float) -> Iterator[http.client.HTTPResponse]:
        """Send, and yield the answer to be read piece by piece.  Raises Problem, OSError, HTTPException."""
        connection, answer = self._send(ask, timeout)
        with contextlib.closing(connection):
            if answer.status >= 400:
                body = answer.read()
                try:
                    document: Any = json.loads(body)
                except ValueError:
                    document = {}
                raise problem(answer.status, document)
            yield answer
