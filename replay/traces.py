"""A log as traces in OpenTelemetry's model: one trace for each app, a span for each phase.

    app     from the submission to the end; the parent of all others, and passed on last
    wait    without a partition, until containers are released
    start   from the release until all containers run
    run     from then until the app is asked to stop, fails, or ends
    stop    of a restart: until the last old container has ended; while the next ones are prepared, the app still runs
    room    of a restart: until the room of the new containers is free
    live    a live adjustment, from the decision until the new membership trains; lies within `run`

A `Tracer` observes a fold and makes the spans; all times are log times.  It passes a span on when its phase has ended, since
backends do not take spans that are open for hours.  A span's ids are hashes over the log's content, so the same phase has the
same ids whenever and wherever it is exported, and a backend that gets a span again recognizes it.

`export_spans` folds a log and gives the spans to a file or a `Receiver`, in OTLP, OpenTelemetry's protocol: as JSON without
any library, as protobuf by `opentelemetry-proto`.  Over HTTP, a batch is sent until the receiver accepts it or rejects it
for good.

    TraceError   the library is missing, or the receiver does not accept the spans
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
from contextlib import aclosing
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from events import kinds as k
from events import subjects
from events.addresses import shown
from events.logger import Logger
from replay import ReplayError
from replay.moments import AtSequence
from replay.travel import fold, state_at

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from dorm.core.folded import Folded
    from dorm.core.state import App, Generation, State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from replay import Progress
    from replay.moments import Moment


# --- spans ------------------------------------------------------------------------------------------------------------

Phase = Literal["app", "wait", "start", "run", "stop", "room", "live"]
Value = str | int | float | bool


class Span(msgspec.Struct, frozen=True):
    """One finished phase."""

    trace: str
    """32 hex digits: the app's."""
    span: str
    """16 hex digits."""
    parent: str
    """The span of the whole app; "" for that one itself."""
    name: Phase
    begin: int
    """UTC ns."""
    end: int
    attributes: dict[str, Value]
    error: str = ""
    """Reason why it failed; "" if it did not."""


def trace_id(cluster: str, app: str) -> str:
    return _hash(16, cluster, app)


def span_id(cluster: str, app: str, generation: int, name: Phase, begin: int) -> str:
    """An app has several waits, and several live adjustments in a generation, so the start is a part of the id."""
    return _hash(8, cluster, app, str(generation), name, "" if name == "app" else str(begin))


def _hash(size: int, *parts: str) -> str:
    return hashlib.blake2b("\0".join(("dorm trace", *parts)).encode(), digest_size=size).hexdigest()


class _Running(msgspec.Struct):
    generation: int
    begin: int
    containers: int


class Tracer:
    """Follows a fold (`Observer`), and passes each finished span to `take`."""

    def __init__(self, cluster: str, take: Callable[[Span], None]) -> None:
        self._cluster = cluster
        self._take = take
        self._waiting: dict[str, int] = {}
        """Times by app, since when it waits."""
        self._starting: dict[str, int] = {}
        """Generations by app whose containers have not all started."""
        self._running: dict[str, _Running] = {}
        self._lives: dict[str, int] = {}
        """Times by app, when its last live adjustment was decided."""

    def begin(self, state: State) -> None:
        """Go on from this state: phases that have begun are passed on whole when they end."""
        for app in state.apps.values():
            if app.ended:
                continue
            self._note_wait(app)
            if app.history and app.history[-1].live:
                self._lives[app.id] = app.history[-1].decided_at
            current = app.generations.get(app.generation)
            released = [
                generation
                for generation in app.generations.values()
                if generation.released_at and not generation.failed
            ]
            if not released:
                continue
            latest = max(released, key=lambda each: each.number)
            if not latest.started_at:
                self._starting[app.id] = latest.number
            elif latest is current or current is None or not current.released_at:
                self._run(app, latest)

    def see(self, state: State, record: Record, folded: Folded) -> None:
        event = folded.event
        if folded.outcome != "applied":
            return
        if isinstance(event, k.Round):
            for fact in event.events:
                self._fact(state, fact)
        elif isinstance(event, k.ContainerStarted):
            self._container_started(state, event)
        elif isinstance(event, k.MembershipChanged):
            self._member_changed(state, event)

    # --- facts ----------------------------------------------------------------------------------------------------------

    def _fact(self, state: State, fact: Any) -> None:
        match fact:
            case k.Resized():
                for change in fact.changes:
                    self._resized(state, change)
            case k.GenerationReleased():
                self._released(state, fact)
            case k.GenerationFailed():
                self._failed(state, fact)
            case k.AppCompleted() | k.AppFailed() | k.AppCancelled():
                self._ended(state, fact)
            case _ if getattr(fact, "app", ""):
                app = state.apps.get(fact.app)
                if app is not None and not app.ended:
                    self._note_wait(app)
            case _:
                pass

    def _resized(self, state: State, change: k.Resize) -> None:
        app = state.apps.get(change.app)
        if app is None or app.ended:
            return
        self._note_wait(app)
        if change.adjustment == "stop":
            self._stop_running(app, state.time)
            self._starting.pop(app.id, None)

    def _released(self, state: State, fact: k.GenerationReleased) -> None:
        app = state.apps.get(fact.app)
        generation = app.generations.get(fact.generation) if app is not None else None
        if app is None or generation is None or generation.released_at != state.time:
            return
        waited = self._waiting.pop(app.id, 0)
        if waited:
            self._hand_on(app, generation.number, "wait", waited, state.time)
        record = app.history[-1] if app.history else None
        if generation.adjustment == "restart" and record is not None and record.to_generation == generation.number:
            stopped = max(record.stopped_at, record.decided_at)
            began = record.prepared_at or record.decided_at
            more: dict[str, Value] = {"dorm.lost_steps": record.lost_steps, "dorm.killed_containers": record.killed}
            self._stop_running(app, began)
            self._hand_on(app, record.from_generation, "stop", began, stopped, more)
            self._hand_on(app, generation.number, "room", stopped, state.time)
        else:
            self._stop_running(app, state.time)
        self._starting[app.id] = generation.number

    def _failed(self, state: State, fact: k.GenerationFailed) -> None:
        app = state.apps.get(fact.app)
        if app is None:
            return
        self._close_generation(state, app, fact.generation, fact.reason or fact.failure or "failed")
        if not app.ended:
            self._note_wait(app)

    def _ended(self, state: State, fact: k.AppCompleted | k.AppFailed | k.AppCancelled) -> None:
        app = state.apps.get(fact.app)
        if app is None or not app.ended:
            return
        error = (fact.reason or "failed") if isinstance(fact, k.AppFailed) else ""
        waited = self._waiting.pop(app.id, 0)
        if waited:
            self._hand_on(app, app.generation, "wait", waited, app.ended_at)
        self._close_generation(state, app, app.generation, error)
        more: dict[str, Value] = {
            "dorm.outcome": app.ended, "dorm.user": app.user, "dorm.adjustments": app.adjustments,
            "dorm.failures": app.failures, "dorm.step": app.step, "dorm.weight": app.weight,
        }  # fmt: skip
        self._lives.pop(app.id, None)
        self._hand_on(app, 0, "app", app.submitted_at, app.ended_at, more, error=error)

    def _close_generation(self, state: State, app: App, number: int, error: str) -> None:
        """Its start or its run ends with it."""
        if self._starting.get(app.id) == number:
            del self._starting[app.id]
            generation = app.generations.get(number)
            if generation is not None:
                self._hand_on(app, number, "start", generation.released_at, state.time, error=error)
        self._stop_running(app, state.time, error)

    # --- agents ---------------------------------------------------------------------------------------------------------

    def _container_started(self, state: State, event: k.ContainerStarted) -> None:
        if self._starting.get(event.app) != event.generation:
            return
        app = state.apps[event.app]
        generation = app.generations[event.generation]
        if generation.started_at:
            del self._starting[app.id]
            self._hand_on(app, generation.number, "start", generation.released_at, generation.started_at)
            self._run(app, generation)

    def _member_changed(self, state: State, event: k.MembershipChanged) -> None:
        app = state.apps.get(event.app)
        record = app.history[-1] if app is not None and app.history else None
        if app is None or record is None or not record.live or record.started_at != state.time:
            return
        if self._lives.get(app.id) == record.decided_at:
            return  # Another report at the same log time.
        self._lives[app.id] = record.decided_at
        more: dict[str, Value] = {
            "dorm.containers_before": record.containers_before, "dorm.containers": record.containers_after,
            "dorm.warm_up_s": record.warm_up_s, "dorm.barrier_s": record.barrier_s, "dorm.pause_s": record.pause_s,
            "dorm.bytes_moved": record.bytes_moved,
        }  # fmt: skip
        self._hand_on(app, event.generation, "live", record.decided_at, record.started_at, more)

    # --- spans ----------------------------------------------------------------------------------------------------------

    def _note_wait(self, app: App) -> None:
        if app.waiting_since:
            self._waiting[app.id] = app.waiting_since

    def _run(self, app: App, generation: Generation) -> None:
        self._running[app.id] = _Running(generation.number, generation.started_at, len(generation.containers))

    def _stop_running(self, app: App, at: int, error: str = "") -> None:
        run = self._running.pop(app.id, None)
        if run is not None:
            more: dict[str, Value] = {"dorm.containers": run.containers}
            self._hand_on(app, run.generation, "run", run.begin, at, more, error=error)

    def _hand_on(
        self,
        app: App,
        generation: int,
        name: Phase,
        begin: int,
        end: int,
        more: Mapping[str, Value] | None = None,
        *,
        error: str = "",
    ) -> None:
        attributes: dict[str, Value] = {"dorm.app": app.id, "dorm.app.name": app.name}
        if generation:
            attributes["dorm.generation"] = generation
        whole = span_id(self._cluster, app.id, 0, "app", 0)
        own = whole if name == "app" else span_id(self._cluster, app.id, generation, name, begin)
        self._take(
            Span(
                trace=trace_id(self._cluster, app.id),
                span=own,
                parent="" if name == "app" else whole,
                name=name,
                begin=begin,
                end=max(begin, end),
                attributes={**attributes, **(more or {})},
                error=error,
            )
        )


# --- otlp -------------------------------------------------------------------------------------------------------------

BATCH = 512
"""Spans of one request."""
_INTERNAL, _ERROR = 1, 2
"""Kind of a span, and status, as the protocol numbers them."""


class TraceError(ReplayError):
    """Spans cannot be exported."""

    code = "traces.failed"


def as_json(cluster: str, spans: Sequence[Span]) -> bytes:
    """Return one request as a line of JSON."""
    return msgspec.json.encode(request(cluster, spans)) + b"\n"


def request(cluster: str, spans: Sequence[Span]) -> dict[str, Any]:
    """Return one request as the protocol's JSON has it: ids in hex, 64-bit integers as text."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": "dorm", "service.namespace": cluster})},
                "scopeSpans": [
                    {"scope": {"name": "dorm", "version": version("dorm")}, "spans": [_span(span) for span in spans]}
                ],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": span.trace,
        "spanId": span.span,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.begin),
        "endTimeUnixNano": str(span.end),
        "attributes": _attributes(span.attributes),
    }
    if span.parent:
        made["parentSpanId"] = span.parent
    if span.error:
        made["status"] = {"code": _ERROR, "message": span.error}
    return made


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def as_protobuf(cluster: str, spans: Sequence[Span]) -> bytes:
    """Return one request in protobuf.  Raises TraceError if the extra `otel` is not installed."""
    try:
        from google.protobuf.json_format import ParseDict
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        raise TraceError(
            "sending traces needs opentelemetry-proto: pip install 'dorm[otel]'; `dorm export traces -o FILE` needs nothing",
            code="package.missing",
        ) from None
    document = request(cluster, spans)
    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for field in ("traceId", "spanId", "parentSpanId"):
            if field in span:  # Protobuf's own JSON has bytes in base64, the protocol's has ids in hex.
                span[field] = base64.b64encode(bytes.fromhex(span[field])).decode()
    encoded: bytes = ParseDict(document, ExportTraceServiceRequest()).SerializeToString()
    return encoded


def rejected(answer: bytes) -> str:
    """Return the text of a receiver's answer about rejected spans, "" if it accepted all."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    response = ExportTraceServiceResponse()
    try:
        response.ParseFromString(answer)
    except DecodeError:
        return ""
    partial = response.partial_success
    return f"{partial.rejected_spans} spans: {partial.error_message[:200]}" if partial.rejected_spans else ""


# --- sending ----------------------------------------------------------------------------------------------------------

_PATH = "/v1/traces"
_TIMEOUT_S = 30.0
_AGAIN = (429, 502, 503, 504)
"""Status codes after which the protocol asks for a retry."""
_FIRST_S, _LONGEST_S = 1.0, 30.0
_MOST_READ = 64 * 1024
_log = Logger(__name__)


def traces_url(url: str) -> str:
    """Return where to post: the receiver's address with the protocol's path, unless it has a path of its own.  Raises
    TraceError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TraceError(
            f"{shown(url)[:100]!r} is not an address of a receiver; write http://HOST:4318", code="traces.url.malformed"
        )
    return url.rstrip("/") + _PATH if parts.path in ("", "/") else url


class Receiver:
    """One receiver of traces; use as an async context manager.  `patience_s` bounds the tries for one batch; None tries
    without end."""

    def __init__(
        self, url: str, cluster: str, *, headers: Mapping[str, str] | None = None, patience_s: float | None = 60.0
    ) -> None:
        self._url = traces_url(url)
        self._cluster = cluster
        self._headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", **(headers or {})}
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Receiver:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, spans: list[Span]) -> None:
        """Raises TraceError if the receiver refuses them, or takes none in time."""
        body = await asyncio.to_thread(lambda: gzip.compress(as_protobuf(self._cluster, spans), 5))
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), _FIRST_S
        while True:
            wait_s, reason = await self._try(body)
            if not reason:
                return
            wait_s = max(wait_s, pause)
            if self._patience_s is not None and loop.time() + wait_s - began > self._patience_s:
                raise TraceError(f"{shown(self._url)} takes no traces: {reason}", code="traces.receiver.unavailable")
            _log.warning("traces wait for their receiver", url=shown(self._url), reason=reason)
            await asyncio.sleep(wait_s)
            pause = min(2 * pause, _LONGEST_S)

    async def _try(self, body: bytes) -> tuple[float, str]:
        """Return how long the receiver asks us to wait, and why it did not accept the batch; "" if it did.  Raises
        TraceError."""
        try:
            async with self._session.post(self._url, data=body, headers=self._headers, allow_redirects=False) as answer:
                if answer.status == 200:
                    if some := rejected(await answer.content.read(_MOST_READ)):
                        _log.warning("the receiver did not take some spans", what=some)
                    return 0.0, ""
                if answer.status not in _AGAIN:
                    text = f"{self._url} refuses traces with {answer.status}: look at its address and at --header"
                    raise TraceError(text, code="traces.receiver.refused")
                pause = answer.headers.get("Retry-After", "")
                return (min(float(pause), _LONGEST_S) if pause.isascii() and pause.isdigit() else 0.0), str(
                    answer.status
                )
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return 0.0, " ".join(str(error).split()) or "no answer in time"


# --- follow -----------------------------------------------------------------------------------------------------------


async def cluster_of(log: ReadableLog) -> str:
    """Return the cluster's name as the log's records have it, so that an archive gives the same ids as the cluster; "" for an
    empty log."""
    first = await log.record_at(await log.start() + 1)
    return subjects.cluster_of(first.subject) if first is not None else ""


async def export_spans(
    log: ReadableLog,
    cluster: str,
    send: Callable[[list[Span]], Awaitable[None]],
    *,
    since: Moment | None = None,
    follow: bool = False,
    progress: Progress | None = None,
) -> int:
    """Pass every span that ends after `since` (default: the log's start) to `send`, at most `BATCH` at once, and return how
    many there were.  With `follow`, it continues with the log, without end, and holds nothing back.

    While `send` runs, nothing more is read, so a slow or absent receiver costs no memory.  Raises as
    `state_at` and `send` do."""
    spans: list[Span] = []
    tracer = Tracer(cluster, spans.append)
    end = await log.end()
    state = await state_at(log, AtSequence(await log.start()) if since is None else since)
    tracer.begin(state)
    first, sent = state.seq, 0
    async with aclosing(log.read(after=state.seq, follow=follow)) as batches:
        async for batch in batches:
            await asyncio.to_thread(fold, state, batch, batch[-1].seq, None, tracer.see)
            while len(spans) >= BATCH or (spans and follow and state.seq >= end):
                await send(spans[:BATCH])
                sent += len(spans[:BATCH])
                del spans[:BATCH]
            if progress is not None:
                progress(min(state.seq, end) - first, end - first)
    if spans:
        await send(spans)
    return sent + len(spans)
