"""Messages on NATS that are no records: heartbeats on a stream with an age limit, and questions to agents and masters.

An answer comes in pieces.  Each piece is a request to the asker's inbox, acknowledged when the asker consumes it.  So
a slow asker slows the answerer down, and the answerer notices that an asker has gone when the next piece, or probe,
finds no listener.  Pieces are numbered: a lost one ends the answer with an error and never leaves a hole in it.

    Dorm-Piece: n     the piece with this number, from 1
    Dorm-Piece: n     with no body: a probe, sent every second without a piece; n is that of the last piece
    Dorm-End: n       the answer is complete with n pieces
    Dorm-Refused: 1   the answer ends here; the body says why

Where all askers get the same short answer (`answer_all`), it is sent without waiting for any of them.  `ask_everyone`
asks all listeners on a subject, such as the masters: the number of answers is not known in advance.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import nats.errors

from events.limits import Shares
from events.log.interface import Answerer, AskRefused, Bus, answering
from events.log.records import LogRefused, LogUnavailable, Record
from events.logger import Logger
from events.nats.link import Link, as_log_errors, cancellable, ended
from events.nats.reader import last_record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from nats.aio.msg import Msg

    from events.nats.access import Credentials


# --- heartbeats and questions -----------------------------------------------------------------------------------------

_PROBE_S = 1.0
"""Seconds without a piece, or without an acknowledgement, before the asker is probed."""
_GONE_S = 60.0
"""Seconds after which a requester that receives nothing counts as gone. Between accounts, no server reports that
there is no listener."""
_WAITING_REPORTS = 16384
"""Heartbeats queued for a slow listener; more are dropped, as the next heartbeat repeats their content."""
_WAITING_QUESTIONS = 1024
_WAITING_BYTES = 32 * 1024 * 1024
_LOOK_UP_S = 5.0
_MOST_ANSWERS = 256
"""Questions that one answerer serves at once.  Of a pattern, each subject has its share: it names who asks, or for whom."""
_MOST_ASKERS = 4096
"""Askers that wait for one answer to all of them; where more ask, those that have waited longest get none."""
_log = Logger(__name__)


class NatsBus(Bus):
    """The bus of one cluster; `reports` is the pattern of its heartbeats' subjects."""

    def __init__(self, link: Link, reports: str, stream: str) -> None:
        """`stream` stores the heartbeats if identities count; elsewhere older clusters have another, which is looked
        up."""
        self._link = link
        self._client = link.client
        self._reports = reports
        self._stream = stream if link.credentials is not None else ""

    async def publish_report(self, subject: str, body: bytes, *, timeout: float = 5.0) -> None:
        self._link.check_size(body)
        await self._link.sendable("report", timeout)
        with as_log_errors("report"):
            await self._link.jetstream().publish(subject, body, timeout=timeout)

    async def reports(self, subject: str) -> AsyncGenerator[Record, None]:
        with as_log_errors("listening for reports"):
            subscription = await self._client.subscribe(
                subject, pending_msgs_limit=_WAITING_REPORTS, pending_bytes_limit=_WAITING_BYTES
            )
            await self._link.listening(subscription)
        try:
            async for message in subscription.messages:
                yield Record(0, 0, message.subject, message.data)
            raise LogUnavailable(f"the connection to {self._link.url} is closed", code="log.closed")
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def last_report(self, subject: str) -> Record | None:
        if not self._stream:
            await self._link.connected(_LOOK_UP_S)
            with as_log_errors("looking up the heartbeats"):
                self._stream = await self._link.jetstream().find_stream_name_by_subject(self._reports)
        return await last_record(self._link, self._stream, subject)

    async def ask(self, subject: str, question: bytes, *, timeout: float = 5.0) -> AsyncGenerator[bytes, None]:
        self._link.check_size(question)
        await self._link.connected(timeout)
        inbox = self._client.new_inbox()
        with as_log_errors("asking"):
            subscription = await self._client.subscribe(inbox)
        try:
            with as_log_errors("asking"):
                await self._client.publish(subject, question, reply=inbox)
                await self._link.taken()
            self._link.permissions.check_request(subject, inbox)
            taken = 0
            while True:
                try:
                    with cancellable():
                        message = await subscription.next_msg(timeout=timeout)
                except nats.errors.TimeoutError:
                    raise LogUnavailable("the agent does not answer; is it running?", code="agent.no_answer") from None
                except nats.errors.Error:
                    raise LogUnavailable(f"the connection to {self._link.url} is closed", code="log.closed") from None
                piece = _piece(message, taken)
                if message.reply:
                    with contextlib.suppress(nats.errors.Error):
                        await self._client.publish(message.reply, b"")
                if piece is None:
                    return
                if piece:
                    taken += 1
                    yield piece
        finally:
            # An inbox without a listener makes the answerer stop.
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    @property
    def guarded(self) -> bool:
        return self._link.credentials is not None

    async def answer(self, subject: str, answerer: Answerer) -> None:
        await self.answer_each(subject, lambda _: answerer)

    async def answer_each(self, pattern: str, answerer_of: Callable[[str], Answerer], *, queue: str = "") -> None:
        with as_log_errors("listening for questions"):
            subscription = await self._client.subscribe(
                pattern, queue=queue, pending_msgs_limit=_WAITING_QUESTIONS, pending_bytes_limit=_WAITING_BYTES
            )
            await self._link.listening(subscription)
        try:
            async with asyncio.TaskGroup() as tasks:
                answers: set[asyncio.Task[None]] = set()
                shares = Shares(_MOST_ANSWERS)
                async for message in subscription.messages:
                    if message.reply:
                        subject = message.subject
                        room = len(answers) < _MOST_ANSWERS if subject == pattern else shares.has_room_for(subject)
                        chosen = answerer_of(subject) if room else _too_busy
                        answers.add(task := tasks.create_task(self._answer(message, chosen)))
                        task.add_done_callback(answers.discard)
                        if room:  # A refusal takes none.
                            shares.take(subject)
                            task.add_done_callback(partial(_left, shares, subject))
                for task in answers:  # Their askers can't be reached any more.
                    task.cancel()
            raise LogUnavailable(f"the connection to {self._link.url} is closed", code="log.closed")
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def answer_all(self, subject: str, answerer: Answerer) -> None:
        with as_log_errors("listening for questions"):
            subscription = await self._client.subscribe(
                subject, pending_msgs_limit=_WAITING_QUESTIONS, pending_bytes_limit=_WAITING_BYTES
            )
            await self._link.listening(subscription)
        asking = _Asking()
        try:
            async with asyncio.TaskGroup() as tasks:
                answers = tasks.create_task(self._answer_waiting(asking, answerer))
                async for message in subscription.messages:
                    if message.reply:
                        asking.add(message.reply)
                answers.cancel()
            raise LogUnavailable(f"the connection to {self._link.url} is closed", code="log.closed")
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _answer_waiting(self, asking: _Asking, answerer: Answerer) -> None:
        """Answer all that wait, again and again: one call of the answerer serves all askers until it is done."""
        while True:
            await asking.requested.wait()
            refused, pieces = "", list[bytes]()
            try:
                async with answering(answerer, b"") as answer:
                    pieces = [piece async for piece in answer if piece]
            except Exception as error:
                refused = _refusal(error)
            for inbox in asking.take():
                with contextlib.suppress(nats.errors.Error):
                    for number, piece in enumerate(pieces if not refused else (), 1):
                        await self._client.publish(inbox, piece, headers={"Dorm-Piece": str(number)})
                    await self._client.publish(inbox, refused.encode(), headers=_last(refused, len(pieces)))

    async def _answer(self, message: Msg, answerer: Answerer) -> None:
        # The answerer runs in its own task, from its first piece to its closing, at most one piece ahead.
        pieces: asyncio.Queue[bytes | _End] = asyncio.Queue(1)
        producing = asyncio.create_task(_produce(answerer, message.data, pieces))
        try:
            await self._send(message.reply, pieces)
        except nats.errors.NoRespondersError:
            _log.debug("the asker has gone", subject=message.subject)
        except nats.errors.Error as error:
            _log.debug("an answer could not be sent", subject=message.subject, error=str(error))
        finally:
            await ended(producing)

    async def _send(self, inbox: str, pieces: asyncio.Queue[bytes | _End]) -> None:
        """Send the pieces.  Raises NoRespondersError when the asker has gone."""
        sent = 0
        while True:
            piece: bytes | _End = b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PROBE_S):
                    piece = await pieces.get()
            if isinstance(piece, _End):
                await self._client.publish(inbox, piece.refused.encode(), headers=_last(piece.refused, sent))
                return
            if len(piece) > self._client.max_payload - 1024:
                piece, pieces = b"", asyncio.Queue(1)
                pieces.put_nowait(_End("a piece of the answer is larger than the server takes"))
            sent += bool(piece)
            headers = {"Dorm-Piece": str(sent)}
            gone_at = asyncio.get_running_loop().time() + _GONE_S
            while True:
                try:
                    with cancellable():
                        await self._client.request(inbox, piece, timeout=_PROBE_S, headers=headers)
                    break
                except nats.errors.TimeoutError:
                    if asyncio.get_running_loop().time() > gone_at:
                        raise nats.errors.NoRespondersError from None
                    piece = b""  # The piece was sent; it is acknowledged before the probe that follows it.


class _Asking:
    """The inboxes of those that wait for an answer to all, in order."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self._inboxes: deque[str] = deque(maxlen=_MOST_ASKERS)

    def add(self, inbox: str) -> None:
        self._inboxes.append(inbox)
        self.requested.set()

    def take(self) -> list[str]:
        taken = list(self._inboxes)
        self._inboxes.clear()
        self.requested.clear()
        return taken


def _last(refused: str, sent: int) -> dict[str, str]:
    """Return the headers of an answer's last message."""
    return {"Dorm-Refused": "1"} if refused else {"Dorm-End": str(sent)}


def _refusal(error: Exception) -> str:
    """Return what an asker learns of an answer that failed.  A fault must not end other answers: the asker gets an error, and
    the operator finds it in this log."""
    if isinstance(error, AskRefused):
        return str(error) or "refused"
    _log.exception("an answer failed")
    return "the agent failed while it answered; its log says more"


class _End:
    """The end of an answer; `refused` says why it is incomplete, "" if it is complete."""

    def __init__(self, refused: str) -> None:
        self.refused = refused


async def _produce(answerer: Answerer, question: bytes, pieces: asyncio.Queue[bytes | _End]) -> None:
    end = _End("")
    try:
        async with answering(answerer, question) as answer:
            async for piece in answer:
                if piece:
                    await pieces.put(piece)
    except Exception as error:
        end = _End(_refusal(error))
    await pieces.put(end)


def _left(shares: Shares, subject: str, _: object) -> None:
    shares.leave(subject)


async def _too_busy(question: bytes) -> AsyncGenerator[bytes, None]:
    del question
    raise AskRefused("the agent is answering too many questions; try again later", code="agent.busy")
    yield b""


def _piece(message: Msg, taken: int) -> bytes | None:
    """Return the next piece of an answer, b"" for a probe, None at the end.  Raises LogUnavailable and LogRefused."""
    headers = message.headers or {}
    if headers.get("Status") == "503":
        raise LogUnavailable("no agent answers for this node; is it running?", code="agent.no_answer")
    if "Dorm-Refused" in headers:
        raise LogRefused(message.data.decode(errors="replace"), code="agent.refused")
    number = headers.get("Dorm-End") or headers.get("Dorm-Piece", "")
    if number != str(taken + bool(message.data)):
        raise LogUnavailable("a part of the answer was lost; ask again", code="agent.answer_lost")
    return None if "Dorm-End" in headers else message.data


async def ask_once(credentials: Credentials, subject: str, question: bytes, *, timeout: float) -> bytes:
    """Connect, ask one question, and return the whole answer.  Raises LogUnavailable, LogRefused, CredentialsError."""
    link = await Link.open(credentials.url, name="dorm", timeout=timeout, credentials=credentials)
    try:
        answer = NatsBus(link, "", "").ask(subject, question, timeout=timeout)
        async with contextlib.aclosing(answer) as pieces:
            return b"".join([piece async for piece in pieces])
    finally:
        await link.close()


# --- a question to all listeners --------------------------------------------------------------------------------------

_MOST = 100_000


class Answer(NamedTuple):
    """One answer."""

    body: bytes
    before: float
    """Time at which the question was sent (seconds, UTC)."""
    after: float
    """Time at which the answer arrived."""


async def ask_everyone(link: Link, subject: str, question: bytes, *, wait_s: float) -> list[Answer]:
    """Return the answers that come within `wait_s` seconds, at most one of each who answers; those of one piece alone.
    Raises LogUnavailable, and LogRefused if this identity may not ask."""
    client = link.client
    await link.connected(wait_s)
    inbox = client.new_inbox()
    with as_log_errors("asking"):
        subscription = await client.subscribe(inbox, pending_msgs_limit=_MOST)
    answers: list[Answer] = []
    try:
        before = time.time()
        with as_log_errors("asking"):
            await client.publish(subject, question, reply=inbox)
            await link.taken()
        link.permissions.check_request(subject, inbox)
        ends = asyncio.get_running_loop().time() + wait_s
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            try:
                with cancellable():
                    message = await subscription.next_msg(timeout=left)
            except nats.errors.Error:  # No more came, or the connection is lost.
                break
            if (message.headers or {}).get("Status") == "503":
                break  # Nobody listens.
            if message.data and "Dorm-Refused" not in (message.headers or {}):
                answers.append(Answer(message.data, before, time.time()))
    finally:
        with contextlib.suppress(nats.errors.Error):
            await subscription.unsubscribe()
    return answers
