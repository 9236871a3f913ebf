"""One connection to a NATS server or cluster: opened quickly or refused clearly.  Errors of nats-py become this project's.

A server answers a forbidden request with an error on the connection that names the subject, and sends no reply; a
caller would wait for its timeout and learn nothing.  So `Denied` ends the request of that subject at once, with role
and subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import sys
from collections import OrderedDict, deque
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors

from events.addresses import shown
from events.log.records import (
    LogClosed,
    LogDamaged,
    LogError,
    LogFull,
    LogRefused,
    LogTooOld,
    LogUnavailable,
    NotSent,
    Overtaken,
)
from events.logger import Logger
from events.nats import internals
from events.nats.access import OWN_API, check_address, is_person, largest_message, servers_of
from events.nats.internals import DirectParser

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.client import Client
    from nats.aio.subscription import Subscription
    from nats.js import JetStreamContext

    from events.nats.access import Credentials
    from events.nats.internals import Taker


# --- what the server forbids ------------------------------------------------------------------------------------------

_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)
_MOST_SUBJECTS = 256
_MOST_REQUESTS = 64
_CODE = "log.no_permission"


class Denied(nats.errors.Error):
    """The server forbids this identity a subject.  The text is for people."""


def connection_of(url: str, credentials: Credentials | None) -> tuple[internals.AbortingClient, Permissions]:
    """Return a client, not connected yet, whose forbidden requests fail at once."""
    client = internals.AbortingClient()
    client.encrypted = credentials is not None and bool(credentials.ca)
    permissions = Permissions(client, url, credentials)
    client.on_request = permissions.note
    return client, permissions


class Permissions:
    """The latest requests of one connection, by their subjects: a denial names the subject alone.  Also, recent denials
    that no request of nats-py waits for: subscriptions by their subjects, other questions by their reply subjects."""

    def __init__(self, client: Client, url: str, credentials: Credentials | None) -> None:
        """`url` is printed in messages."""
        self._client = client
        self._url = url
        self._role = credentials.role if credentials is not None else ""
        self._who = str(credentials) if credentials is not None else "a connection without credentials"
        self._replies: OrderedDict[str, deque[tuple[str, str]]] = OrderedDict()
        self._forbidden: OrderedDict[str, None] = OrderedDict()

    def note(self, subject: str, reply: str) -> None:
        """A request is about to be sent."""
        key = subject.lower()
        self._replies.setdefault(key, deque(maxlen=_MOST_REQUESTS)).append((subject, reply))
        self._replies.move_to_end(key)
        if len(self._replies) > _MOST_SUBJECTS:
            self._replies.popitem(last=False)

    def on_error(self, error: Exception) -> None:
        """Fail the request that the server has just forbidden.  Of several on one subject it is the last, unless the
        permissions changed between them: a server forbids each with an error of its own."""
        match = _DENIED.search(str(error))
        if match is None:
            return
        subject = match[2].lower()  # As nats-py passes on the whole text.
        if match[1].lower() == "subscription":
            self._forbid(subject)
            return
        waiting = self._replies.get(subject)
        if waiting:
            sent, reply = waiting.pop()
            if not internals.fail_request(self._client, reply, Denied(self._forbids("publish", sent))):
                self._forbid(reply)

    def check_listening(self, subject: str) -> None:
        """Raises LogRefused if the server has forbidden a subscription."""
        if self._was_forbidden(subject.lower()):
            raise LogRefused(self._forbids("listen", subject), code=_CODE)

    def check_request(self, subject: str, reply: str) -> None:
        """Raises LogRefused if the server has forbidden a request, whose answer would come on `reply`."""
        if self._was_forbidden(reply):
            raise LogRefused(self._forbids("publish", subject), code=_CODE)

    def not_let_in(self, detail: str) -> LogRefused:
        """Return the error for a connection that the server refuses or has ended."""
        who, hint = "us", "name your credentials with --credentials or --context"
        if self._role:
            who, hint = self._who, "an admin may have removed or replaced this identity (`dorm user list`)"
        return LogRefused(f"the NATS server at {self._url} does not let {who} in: {detail}; {hint}", code=_CODE)

    def _forbids(self, what: str, subject: str) -> str:
        hint = ""
        if not self._role:
            hint = "; name your credentials with --credentials or --context"
        elif is_person(self._role):
            hint = "; an admin gives you another role with `dorm user add`"
        return f"the NATS server forbids {self._who} to {what} on {subject}{hint}"

    def _forbid(self, subject: str) -> None:
        self._forbidden[subject] = None
        if len(self._forbidden) > _MOST_SUBJECTS:
            self._forbidden.popitem(last=False)

    def _was_forbidden(self, subject: str) -> bool:
        """Return whether a subject was forbidden since the last call."""
        if subject not in self._forbidden:
            return False
        del self._forbidden[subject]
        return True


# --- the connection ---------------------------------------------------------------------------------------------------

OLDEST_SERVER = (2, 12)
_WRONG_LAST_SEQUENCE = (10071, 10164)
_NOTHING_THERE = (10037, 10059)
NO_ROOM = (10023, 10028, 10047)
"""Insufficient resources: any kind, memory, storage."""
_NOT_STORED = 10077
"""The stream is at a limit, or another cause that the description gives."""
_TOO_LARGE = 10054
"""The message is larger than the stream's `max_msg_size`."""
_NOW_NOBODY = (10004, 10005, 10008, 10009, 10158)
"""Transient errors of a cluster: it is incomplete, has no suitable peers, does not answer, or this server does not lead; or a
message with this id is in flight, not yet stored, and may still fail."""
NO_JETSTREAM = "log.no_jetstream"
NO_MORE_READERS = "log.readers.too_many"
_MOST_CONSUMERS = 10026
_HEADER_ROOM = 1024
_PING_S = 3
"""Seconds between pings.  A frozen or cut-off server is abandoned after two to three without an answer."""
_BLIP_S = 1.0
"""Seconds that an append waits for a lost connection: about as long as a server takes to restart."""
_CLOSE_S = 2.0
_RESET_S = 0.1
_FLUSH_S = 5
_LOCKED_OUT = 3
"""Refusals in a row after which an identity counts as removed, not as met by a server that is starting."""
_SAY_AGAIN_S = 60.0
_log = Logger(__name__)


class Link:
    """A client that reconnects without end, and reports when it has.

    nats-py does not notify callers whose answer was lost with the server.  Here requests fail as soon as the
    connection is lost, and readers register (`watchers`) to be woken when it is back or closed permanently.  Nothing
    is buffered to be sent after a reconnect: a caller whose append failed must not see it stored much later.
    """

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        self.client, self.permissions = connection_of(shown(url), credentials)
        self._parser = DirectParser(self.client)
        internals.use_parser(self.client, self._parser)
        self.servers = servers_of(url)
        self.url = shown(",".join(self.servers))
        """Addresses to which it connects, without passwords."""
        self.credentials = credentials
        self.api = credentials.api if credentials is not None else OWN_API
        """The prefix of JetStream's API."""
        role = credentials.role if credentials is not None else ""
        self._largest = largest_message(role) or sys.maxsize
        """The bytes that the server takes from this identity, which it does not announce."""
        self._locked_out = 0
        """Number of times in a row, since the connection was lost, that the server did not let this identity in."""
        self.watchers: set[Callable[[str], None]] = set()
        self.on_outage: Callable[[bool], None] = lambda _: None
        """Called with True when the connection is lost, and False when it is back."""
        self._left_out, self._left_out_said = 0, -math.inf
        self._troubles: list[Exception] = []
        self._troubled = asyncio.Event()
        self._settled = asyncio.Event()
        """Connected, or closed permanently."""

    @classmethod
    async def open(cls, url: str, *, name: str, timeout: float, credentials: Credentials | None = None) -> Link:
        """Connect.  Raises LogUnavailable if no server answers (at once if the port is closed), LogTooOld, LogRefused, or
        CredentialsError."""
        _check_client()
        ends = asyncio.get_running_loop().time() + timeout
        while True:
            try:
                return await cls._open(url, name, timeout, credentials)
            except LogUnavailable as error:
                # A server that reads its accounts again drops connections that are just being made.
                if not isinstance(error.__cause__, ConnectionResetError) or asyncio.get_running_loop().time() > ends:
                    raise
            await asyncio.sleep(_RESET_S)

    @classmethod
    async def _open(cls, url: str, name: str, timeout: float, credentials: Credentials | None) -> Link:
        link = cls(url, credentials)
        for server in link.servers:
            check_address(server, encrypted=credentials is not None and bool(credentials.ca))
        try:
            await link._connect(name, timeout)
            link._check_version()
            await link._check_parser(timeout)
        except BaseException:
            await link._abandon()
            raise
        return link

    async def _connect(self, name: str, timeout: float) -> None:
        # The client would retry without end, so the first connect is bounded here, and one failure of each server is enough.
        connecting = asyncio.ensure_future(
            self.client.connect(
                self.servers,
                name=name,
                # A server that hangs must leave time for the others.
                connect_timeout=max(1, int(timeout / len(self.servers))),
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.2,  # type: ignore[arg-type]  # seconds; it only ever adds and sleeps
                ping_interval=_PING_S,
                max_outstanding_pings=2,
                pending_size=0,  # while the connection is lost
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnect,
                reconnected_cb=self._on_reconnect,
                closed_cb=self._on_close,
                **(self.credentials.options() if self.credentials is not None else {}),
            )
        )
        troubled = asyncio.ensure_future(self._troubled.wait())
        try:
            await asyncio.wait({connecting, troubled}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                connecting.result()
                self._settled.set()
                return
        except (nats.errors.Error, OSError) as error:
            self._troubles.append(error)
        finally:
            await ended(connecting)
            await ended(troubled)
        raise self._refusal() from next(iter(self._troubles), None)

    def jetstream(self, timeout: float = 5.0) -> JetStreamContext:
        """Return nats-py's client of JetStream's API, with this identity's prefix."""
        return self.client.jetstream(prefix=self.api, timeout=timeout)

    def _refusal(self) -> LogError:
        details = [_description(trouble) for trouble in self._troubles] or ["no answer in time"]
        for detail in details:
            if "authoriz" in detail.lower():
                return self.permissions.not_let_in(detail)
            if "certificate" in detail.lower() or "encryption" in detail.lower():
                return LogRefused(
                    f"the NATS server at {self.url} can't be trusted: {detail}; name the cluster's credentials with "
                    "--credentials or --context, and get them again if its authority is a new one",
                    code="log.server_not_trusted",
                )
        return LogUnavailable(
            f"no NATS server answers at {self.url} ({details[0]}); start a cluster with `dorm up`, or name one with --url",
            code="log.no_server",
        )

    def _check_version(self) -> None:
        version = self.client.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            raise LogTooOld(
                f"the NATS server at {self.url} is {version.major}.{version.minor}.{version.patch}; "
                f"Dorm needs {OLDEST_SERVER[0]}.{OLDEST_SERVER[1]} or later"
            )

    @property
    def certificate(self) -> bytes:
        """The certificate of the connected server, in DER; empty if the connection is not encrypted."""
        return internals.server_certificate(self.client)

    @property
    def has_jetstream(self) -> bool:
        """Whether the server announces that JetStream is on."""
        return bool(internals.server_info(self.client).get("jetstream"))

    @property
    def server_name(self) -> str:
        """The connected server's name, or its id if it has none."""
        return str(internals.server_info(self.client).get("server_name", ""))

    @property
    def server_id(self) -> str:
        """The connected server's id, which changes with each start."""
        return str(internals.server_info(self.client).get("server_id", ""))

    @property
    def known_servers(self) -> list[str]:
        """The configured addresses, and those that the servers announce."""
        discovered = [address.geturl() for address in self.client.discovered_servers]
        return list(dict.fromkeys([*self.servers, *discovered]))

    @property
    def clustered(self) -> bool:
        """Whether the server announces that it is part of a cluster."""
        return bool(internals.server_info(self.client).get("cluster"))

    async def take(self, subject: str, taker: Taker) -> Subscription:
        """Subscribe, and pass each message to the taker at once."""

        async def never(_: object) -> None:
            raise AssertionError("the parser hands over what comes here")

        subscription = await self.client.subscribe(subject, cb=never)
        self._parser.takers[internals.id_of(subscription)] = taker
        return subscription

    async def leave(self, subscription: Subscription) -> None:
        """End a subscription made by `take`."""
        self._parser.takers.pop(internals.id_of(subscription), None)
        await subscription.unsubscribe()

    def check_let_in(self) -> None:
        """Raises LogRefused if the server does not let this identity in any more."""
        if self._locked_out >= _LOCKED_OUT or isinstance(self.client.last_error, nats.errors.AuthorizationError):
            raise self.permissions.not_let_in("authorization violation")

    async def taken(self) -> None:
        """Wait until the server has accepted, or forbidden, everything that was sent."""
        # nats-py writes a ping at once, before what waits to be sent: the second one follows that.
        await self.client.flush(_FLUSH_S)
        await self.client.flush(_FLUSH_S)

    async def listening(self, subscription: Subscription) -> None:
        """Wait until the server has a subscription.  Raises LogRefused if it forbids it."""
        await self.taken()
        try:
            self.permissions.check_listening(subscription.subject)
        except LogRefused:
            await subscription.unsubscribe()
            raise

    @property
    def denied(self) -> str:
        """The server's message about missing permissions, "" if there was none: a denied request gets no answer."""
        return next(
            (_description(trouble) for trouble in self._troubles if "permissions violation" in str(trouble).lower()), ""
        )

    async def _on_error(self, error: Exception) -> None:
        # Permission denials and slow consumers show up only here.
        self._troubles = [*self._troubles[-99:], error]
        if len(self._troubles) >= len(self.servers):
            self._troubled.set()
        self.permissions.on_error(error)
        if "authorization violation" in str(error).lower():
            self._note_locked_out()
        if isinstance(error, nats.errors.SlowConsumerError):
            self._report_left_out(error.subject)
        else:
            _log.debug("nats error", error=_description(error))

    def _note_locked_out(self) -> None:
        self._locked_out += 1
        if self._locked_out >= _LOCKED_OUT:
            self._settled.set()  # Those that wait for a connection learn that there will be none.
        if self._locked_out == _LOCKED_OUT:
            self._notify("locked out")

    def _report_left_out(self, subject: str) -> None:
        now = asyncio.get_running_loop().time()
        self._left_out += 1
        if now - self._left_out_said >= _SAY_AGAIN_S:
            _log.warning(
                "messages are left out, as they come faster than they are taken", of=subject, so_far=self._left_out
            )
            self._left_out_said = now

    async def _on_disconnect(self) -> None:
        self._settled.clear()
        internals.discard_unsent(self.client)
        internals.fail_requests(self.client, _AnswerLost())
        if not self.client.is_closed:
            self.on_outage(True)

    async def _on_reconnect(self) -> None:
        self._locked_out = 0
        self._settled.set()
        self.on_outage(False)
        self._notify("reconnected")

    async def _on_close(self) -> None:
        self._settled.set()
        self._notify("closed")

    def _notify(self, what: str) -> None:
        for watcher in list(self.watchers):
            watcher(what)

    async def connected(self, timeout: float | None = None) -> None:
        """Wait until there is a connection. Raises LogUnavailable after `timeout`, or if it was closed
        permanently."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._settled.wait()
        if not self._settled.is_set():
            raise LogUnavailable(f"the NATS server at {self.url} does not answer")
        self.check_let_in()
        if self.client.is_closed:
            raise LogClosed(f"the connection to {self.url} is closed")

    async def sendable(self, doing: str, timeout: float) -> None:
        """Check the connection right before sending a message that must not be sent later.  Raises NotSent if there is
        none."""
        if self.client.is_reconnecting and self._locked_out < _LOCKED_OUT:
            self._settled.clear()
        if not self._settled.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(timeout, _BLIP_S)):
                    await self._settled.wait()
        if not self.client.is_connected:
            self.check_let_in()
            raise NotSent(
                f"{doing}: the connection to {self.url} is lost, so nothing was sent; try again when it is back"
            )

    async def _check_parser(self, timeout: float) -> None:
        """Check that our parser is in use.  nats-py reads the lines of the handshake itself, so it takes one more line."""
        if not self._parser.used:
            with as_log_errors(f"asking {self.url} for an answer"):
                await self.client.flush(max(1, round(timeout)))
        if not self._parser.used:
            raise _unknown_client("it has not used our parser")

    async def close(self) -> None:
        """Flush pending writes, then close."""
        if self.client.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self.client.flush(timeout=2)
        await self._abandon()

    async def _abandon(self) -> None:
        self.client.abandoned = True
        before = _cancellations()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.client.close()
        except (nats.errors.Error, OSError, TimeoutError):
            pass
        except asyncio.CancelledError:
            if _cancellations() > before:
                raise  # Otherwise it is the stream's own future, which was cancelled with a connect that waited for it.

    def check_size(self, body: bytes, headers: int = 0, most: float = math.inf) -> None:
        """Raises LogRefused for a message too large for the server, which would disconnect, or for a stream that takes at
        most so many bytes.  `headers`: bytes of values."""
        size = len(body) + (headers + _HEADER_ROOM if headers else 0)
        most = min(most, self.client.max_payload, self._largest)
        if size > most:
            raise LogRefused(
                f"the message has {len(body):,} bytes; the server takes at most {most:,}"
                + (f" with its headers ({_HEADER_ROOM:,} are kept for them)" if headers else ""),
                code="log.message.too_large",
            )


class _AnswerLost(nats.errors.Error):
    def __str__(self) -> str:
        return "the connection was lost before the answer came"


def _check_client() -> None:
    """Raises LogRefused if the installed nats-py lacks what Dorm uses of its internals."""
    if missing := internals.missing():
        raise _unknown_client(f"it has no {', '.join(missing)}")


def _unknown_client(reason: str) -> LogRefused:
    return LogRefused(
        f"Dorm does not work with nats-py {version('nats-py')}: {reason}; install a version that `pip check` accepts",
        code="package.untested",
    )


def _description(error: Exception) -> str:
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return text.removeprefix("nats: ").strip("'")[:200] or type(error).__name__


def log_error(error: BaseException, doing: str) -> LogError:
    """Return the log's error for an error of nats-py."""
    if isinstance(error, nats.js.errors.APIError):
        return _api_error(error, doing)
    if isinstance(error, Denied):
        return LogRefused(f"{doing}: {error}", code="log.no_permission")
    if isinstance(error, nats.js.errors.NoStreamResponseError):
        return LogUnavailable(
            f"{doing}: nothing takes this subject: the log's stream is gone, or JetStream is starting",
            code="log.no_stream",
        )
    if isinstance(error, nats.errors.OutboundBufferLimitError):
        return NotSent(f"{doing}: the connection to the NATS server is lost")
    if isinstance(error, nats.errors.MaxPayloadError):
        return LogRefused(f"{doing}: the message is larger than the server takes", code="log.message.too_large")
    if isinstance(error, nats.errors.BadSubjectError | nats.errors.BadHeaderError):
        return LogRefused(f"{doing}: {_description(error)}")
    if isinstance(error, nats.errors.TimeoutError | TimeoutError):
        return LogUnavailable(f"{doing}: the NATS server does not answer")
    return LogUnavailable(f"{doing}: {_description(error) if isinstance(error, Exception) else error}")


def _api_error(error: nats.js.errors.APIError, doing: str) -> LogError:
    if error.err_code in _WRONG_LAST_SEQUENCE:
        return Overtaken(str(error.description))
    if error.err_code in NO_ROOM or (error.err_code == _NOT_STORED and "maximum" in str(error.description)):
        return LogFull(
            f"{doing}: the NATS server has no room for more ({error.description}); `dorm log limit` shows "
            "the log's limit and raises it, and its JetStream needs the disk for it"
        )
    nobody = error.code == 503 or isinstance(error, nats.js.errors.ServiceUnavailableError)
    if nobody:
        if error.err_code is None:
            return LogUnavailable(
                f"{doing}: JetStream does not answer; it is starting, or off (start the server with -js)",
                code=NO_JETSTREAM,
            )
        if error.err_code in (10039, 10076):  # Not enabled for the account, or for the server.
            return LogRefused(f"{doing}: JetStream is off at this server; start it with -js", code=NO_JETSTREAM)
    # While servers elect a leader they report that none is available or suitable.  A conflict or an internal error leaves
    # the message's fate open too.  Only an error about the message itself is a refusal.
    if nobody or error.code in (409, 500) or error.err_code in (*_NOW_NOBODY, _NOT_STORED):
        return LogUnavailable(f"{doing}: {error.description}")
    if error.err_code in _NOTHING_THERE and "message" not in str(error.description):
        return LogDamaged(f"{doing}: {error.description}", code="log.gone")
    if error.err_code == _MOST_CONSUMERS:
        return LogUnavailable(f"{doing}: it has as many readers as it may have; close some", code=NO_MORE_READERS)
    if error.err_code == _TOO_LARGE:
        return LogRefused(f"{doing}: the message is larger than the log takes", code="log.message.too_large")
    return LogRefused(f"{doing}: {error.description}")


class cancellable(contextlib.AbstractContextManager[None]):
    """Raise a cancellation that arrived while the body ran, if nothing else is raised.

    `asyncio.wait_for` of Python 3.11, which nats-py uses, drops a cancellation that arrives together with the answer; the
    canceller would then wait forever.
    """

    def __enter__(self) -> None:
        self._before = _cancellations()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, asyncio.CancelledError | GeneratorExit) and _cancellations() > self._before:
            raise asyncio.CancelledError from None


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


async def ended(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end; cancel again if it ignored the cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)


class as_log_errors(cancellable):
    """Turn errors of nats-py into this project's errors."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, nats.errors.Error | asyncio.TimeoutError | ConnectionError):
            raise log_error(error, self._doing) from error
