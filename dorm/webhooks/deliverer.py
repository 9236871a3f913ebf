"""Delivers a cluster's webhooks: a worker for each, started, changed and ended by events of the log.

Any number of deliverers may run.  They share each webhook's place in the log, so an event goes to one of them; they need
the same file of keys.

Nothing happens on the log while an app waits, so its wait becomes an event here, which is delivered like others.  A watch
folds the log (`dorm.live_fold`), and publishes a wait once for each webhook's time; the events are on the log, so a
restart repeats none.  Two deliverers may publish the same wait at the same moment, each under its own user.  The first of
the two events on the log counts, and every deliverer ignores the other (`left_out`).  A watch measures by log time,
extrapolated between records, so a wrong clock reports nothing early.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.gates import closed
from dorm.health.checks import Check
from dorm.live_fold import LiveFold, NotFolded, Thread, newest_state
from dorm.webhooks import endpoints
from dorm.webhooks.endpoints import TOPIC
from dorm.webhooks.notifier import MOST_NOT_DONE, Notifier
from dorm.webhooks.notifier import SCHEDULE_S as NOTIFY_SCHEDULE_S
from dorm.webhooks.sending import TIMEOUT_S, Measured, Sender
from dorm.webhooks.worker import MOST_PENDING, SCHEDULE_S, Worker
from events import subjects
from events.appending import append_event
from events.codec import decode
from events.kinds import AppWaitsLong, Event, WebhookDisabled, WebhookTested
from events.limits import clipped
from events.log.records import LogClosed, LogDamaged, LogError, LogRefused, until_answered
from events.logger import Logger
from events.nats.places import AGAIN_S, WEBHOOK
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client import Metric

    from dorm.core.app import App
    from dorm.core.folded import Folded
    from dorm.core.state import State
    from dorm.webhooks.endpoints import Endpoint
    from dorm.webhooks.keys import Keys
    from dorm.webhooks.sending import Network, Outcome
    from events.kinds import Event, WebhookTestRequested
    from events.log.interface import EventLog
    from events.log.records import Record
    from events.nats.connection import Connection
    from events.nats.places import Places, Standing
    from events.positions import Logged


# --- which apps wait long ---------------------------------------------------------------------------------------------

_LOOK_S = 5.0
_MOST_VOIDS = 10_000
_MOST_WAITS = 100_000
"""Waits that are remembered, the latest."""


def overdue(state: State, now: int, after_s: Iterable[float]) -> Iterator[AppWaitsLong]:
    """Yield the waits of live apps that have lasted for one of these times (seconds).  `now` is log time, UTC ns."""
    for limit in sorted(set(after_s)):
        for app in state.live_apps():
            since = app.waiting_since
            if since and now - since >= limit * SECOND and not closed(app, now):
                reason = app.waiting
                yield AppWaitsLong(
                    id=f"waits.{app.id}.{since}.{limit}",
                    app=app.id,
                    since=since,
                    after_s=limit,
                    code=reason.code[:64] if reason is not None else "",
                    reason=clipped(reason.text) if reason is not None else "",
                )


_Wait = tuple[str, int, float]
"""An app, since when it waits, and the time after which that is published."""


def _wait_of(event: AppWaitsLong) -> _Wait:
    return event.app, event.since, event.after_s


class Watch:
    """Folds a cluster's log, publishes long waits, and knows which rounds are void."""

    def __init__(
        self, log: EventLog, cluster: str, who: str, *, clock: Callable[[], int], after_s: Callable[[], Iterable[float]]
    ) -> None:
        """`after_s` returns the times (seconds) that webhooks name now."""
        self._log = log
        self._cluster = cluster
        self._who = who
        self._clock = clock
        self._after_s = after_s
        self._published: dict[_Wait, int] = {}
        """Waits that are on the log, and the sequence of the first event about each."""
        self._voids: dict[int, None] = {}
        self._thread = Thread("dorm-webhooks")
        self._fold = LiveFold(log, begin=self._open, thread=self._thread)
        self._fold.on_begin.append(lambda _state: self._fold.observers.append(self._note_record))

    async def left_out(self, logged: Logged) -> bool:
        """Return whether an event, once folded, belongs to a void round or repeats an earlier one."""
        if logged.round is None and not isinstance(logged.event, AppWaitsLong):
            return False
        seq = logged.position.seq
        await self._fold.reach(seq)
        if isinstance(logged.event, AppWaitsLong):
            return self._published.get(_wait_of(logged.event), seq) != seq
        return seq in self._voids

    async def app_after(self, seq: int, app_id: str) -> App | None:
        """Return an app once this record is folded; None if the cluster keeps it no longer."""
        while True:
            await self._fold.reach(seq)
            with contextlib.suppress(NotFolded):
                return await self._fold.look(lambda state: copy(state.apps.get(app_id)))

    async def run(self) -> None:
        """Follow the log until cancelled.  Raises LogClosed, LogRefused."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fold.run())
                while True:
                    reached = self._fold.seq
                    if self._fold.ready and reached >= self._fold.end:
                        await self._publish_waits()
                    if self._fold.seq == reached:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_LOOK_S):
                                await self._fold.moved()
        finally:
            self._thread.close()

    async def _open(self) -> State:
        state = await newest_state(self._log)
        waits = subjects.fact_pattern(self._cluster, AppWaitsLong.__name__)
        async with contextlib.aclosing(self._log.read(after=await self._log.start(), subjects=[waits])) as batches:
            async for batch in batches:
                for record in batch:
                    self._note(decode(record), record.seq)
        return state

    def _note_record(self, _state: State, record: Record, event: Event, folded: Folded) -> None:
        if folded == "void":
            self._voids[record.seq] = None
            while len(self._voids) > _MOST_VOIDS:
                del self._voids[next(iter(self._voids))]
        self._note(event, record.seq)

    def _note(self, event: object, seq: int) -> None:
        if isinstance(event, AppWaitsLong):
            wait = _wait_of(event)
            # Its own event is noted when it is stored, an earlier one of another deliverer only when that is folded.
            self._published[wait] = min(seq, self._published.get(wait, seq))
            while len(self._published) > _MOST_WAITS:
                del self._published[next(iter(self._published))]

    async def _publish_waits(self) -> None:
        limits = list(self._after_s())
        if not limits:
            return
        since_folded_s = asyncio.get_running_loop().time() - self._fold.folded_at

        def new(state: State) -> list[AppWaitsLong]:
            now = state.time + int(since_folded_s * SECOND)
            return [event for event in overdue(state, now, limits) if _wait_of(event) not in self._published]

        with contextlib.suppress(NotFolded):
            for event in await self._fold.look(new, "waits"):
                await self._publish(msgspec.structs.replace(event, at=self._clock(), by=self._who))

    async def _publish(self, event: AppWaitsLong) -> None:
        subject = subjects.fact(self._cluster, AppWaitsLong.__name__, self._who)
        stored = await until_answered(lambda: append_event(self._log, subject, event), "reporting a wait")
        self._note(event, stored.seq)


# --- the webhooks of a cluster ----------------------------------------------------------------------------------------

_AGAIN_S = 5.0
_log = Logger(__name__)


def place_of(endpoint: Endpoint, hidden: str = "") -> str:
    """Return the name of a webhook's place in the log; a webhook that was removed and added again starts at another
    place.  On a cluster with identities, `hidden` keeps others from guessing it."""
    middle = f"-{hidden}" if hidden else ""
    return f"{WEBHOOK}{subjects.token(endpoint.name).translate(_SAFE)}{middle}-{endpoint.added}"


def is_place_of(name: str, endpoint: Endpoint) -> bool:
    """Return whether this is the name of a webhook's place, regardless of its hidden part."""
    begin, _, end = place_of(endpoint).rpartition("-")
    hidden = name.removeprefix(begin).removesuffix(f"-{end}")
    return name == f"{begin}{hidden}-{end}" and (not hidden or re.fullmatch("-[0-9a-f]{32}", hidden) is not None)


async def standing_of(places: Places, endpoint: Endpoint) -> Standing | None:
    """Return where the deliverers of a webhook are; None before one has run, and if only an admin may look.  Raises
    LogUnavailable."""
    try:
        names = await places.names(WEBHOOK)
    except LogRefused:
        return None
    place = next((name for name in names if is_place_of(name, endpoint)), None)
    return await places.standing(place) if place is not None else None


_SAFE = str.maketrans(dict.fromkeys("@+=", "_"))


class Deliverer:
    """The webhooks of one cluster in one process."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        *,
        who: str,
        clock: Callable[[], int],
        allowed: Sequence[Network] = (),
        schedule_s: tuple[float, ...] = SCHEDULE_S,
        timeout_s: float = TIMEOUT_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """`who` is the user in whose name it reports; `allowed` are networks in addition to the public ones.  Requests
        take at most `timeout_s` seconds; deliveries of a killed deliverer are repeated after `again_s`."""
        self._connection = connection
        self._log = connection.log
        self._cluster = connection.cluster
        self._keys = keys
        self._who = who
        self._clock = clock
        self._schedule_s = schedule_s
        self._again_s = again_s
        self._sender = Sender(allowed, timeout_s=timeout_s)
        self._endpoints = endpoints.Endpoints()
        self._measured = Measured()
        self._workers: dict[str, tuple[Endpoint, asyncio.Task[None]]] = {}
        self._watch = Watch(self._log, self._cluster, who, clock=clock, after_s=self._waits)
        self.ready = asyncio.Event()
        """Event that is set once every webhook that the log named at the start has its worker."""

    async def metrics(self) -> Iterable[Metric]:
        """Return its counts, for `dorm.metrics.server`."""
        return self._measured.metrics(self._endpoints)

    async def checks(self) -> Sequence[Check]:
        """Return whether it delivers, for `dorm.health`."""
        active = sum(endpoint.state == "active" for endpoint in self._endpoints)
        text = f"{active} webhooks are delivered" if active != 1 else "1 webhook is delivered"
        if not self.ready.is_set():
            text = "the webhooks are still being read from the log; `dorm doctor` looks at its servers"
        return [Check("webhooks", self.ready.is_set(), text)]

    def _waits(self) -> Iterator[float]:
        for endpoint in self._endpoints:
            if endpoint.state == "active" and "app.waits" in endpoint.events:
                yield endpoint.waits_s

    async def run(self) -> None:
        """Deliver until cancelled.  Waits for a log that does not answer, and reads on after damage.  Raises LogClosed,
        LogRefused, and LogDamaged from the first reading."""
        await until_answered(self._read_all, "reading which webhooks there are")
        try:
            async with self._sender, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch.run())
                for endpoint in self._endpoints:
                    await self._update_worker(endpoint.name, tasks)
                tasks.create_task(self._remove_places())
                self.ready.set()
                while True:
                    try:
                        await self._follow(tasks)
                    except LogDamaged as error:
                        _log.warning("the webhooks on the log cannot be followed, reading on", reason=str(error))
                    await asyncio.sleep(_AGAIN_S)
        finally:
            self.ready.clear()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        """Follow which webhooks there are, from the last record about one."""
        wanted = endpoints.subjects_of(self._cluster)
        batches = self._log.read(after=self._endpoints.seq, subjects=wanted, follow=True)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for record in batch:
                    if name := self._endpoints.fold(record):
                        await self._update_worker(name, tasks)

    async def _read_all(self) -> None:
        self._endpoints = endpoints.Endpoints()
        wanted = endpoints.subjects_of(self._cluster)
        async with contextlib.aclosing(self._log.read(after=await self._log.start(), subjects=wanted)) as batches:
            async for batch in batches:
                for record in batch:
                    self._endpoints.fold(record)

    async def _update_worker(self, name: str, tasks: asyncio.TaskGroup) -> None:
        """Start, change or end the worker of a webhook."""
        endpoint = self._endpoints.get(name)
        before, running = self._workers.pop(name, (None, None))
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        if before is not None and (endpoint is None or endpoint.added != before.added):
            tasks.create_task(self._remove_place(self._place(before)))
        if endpoint is None or endpoint.state != "active":
            return
        self._workers[name] = endpoint, tasks.create_task(self._deliver(endpoint))

    async def _deliver(self, endpoint: Endpoint) -> None:
        """A failure of one webhook does not affect others."""
        while True:
            try:
                if not self._keys.knows(endpoint.key):
                    reason = (
                        f"its key is from another file than the deliverer's ({self._who}); set it again with that file"
                    )
                    await self.disable(endpoint, "webhook.key.unknown", reason)
                    return
                await self._worker(endpoint).run()
                return
            except LogClosed:
                return
            except LogError as error:
                _log.error("a webhook can't be delivered", webhook=endpoint.name, reason=str(error))
            except Exception:
                _log.exception("a webhook can't be delivered; please report this")
            await asyncio.sleep(_AGAIN_S)

    def _worker(self, endpoint: Endpoint) -> Worker:
        notifies = TOPIC in endpoint.events
        place = self._connection.places.reader(
            self._place(endpoint),
            endpoints.delivered_subjects(self._cluster),
            after=endpoint.added,
            most=MOST_NOT_DONE if notifies else MOST_PENDING,
            again_s=self._again_s,
        )
        given = (endpoint, place, self._sender, self._keys, self._cluster)
        common: dict[str, Any] = {
            "clock": self._clock,
            "left_out": self._watch.left_out,
            "reports": self,
            "measured": self._measured,
        }
        if notifies:
            schedule_s = self._schedule_s[: len(NOTIFY_SCHEDULE_S)]
            more = {"schedule_s": schedule_s, "most_pending": MOST_NOT_DONE}
            return Notifier(*given, **common, **more, find=self._watch.app_after, again_s=self._again_s)
        return Worker(*given, **common, schedule_s=self._schedule_s)

    # --- places ---------------------------------------------------------------------------------------------------------

    def _place(self, endpoint: Endpoint) -> str:
        return place_of(endpoint, self._keys.hidden(endpoint.name) if self._connection.user else "")

    async def _remove_places(self) -> None:
        """Forget the places of webhooks that were removed while no deliverer ran."""
        kept = {self._place(endpoint) for endpoint in self._endpoints}
        try:
            for name in await self._connection.places.names(WEBHOOK):
                if name not in kept and not self._is_newer(name):
                    await self._remove_place(name)
        except LogError as error:
            _log.warning("places of removed webhooks stay", reason=str(error))

    def _is_newer(self, place: str) -> bool:
        """Return whether a place belongs to a webhook that this process has not read about yet."""
        added = place.rpartition("-")[2]
        return added.isdigit() and int(added) > self._endpoints.seq

    async def _remove_place(self, name: str) -> None:
        try:
            await self._connection.places.remove(name)
        except LogError as error:
            _log.warning("the place of a removed webhook stays", place=name, reason=str(error))

    # --- reports --------------------------------------------------------------------------------------------------------

    async def disable(self, endpoint: Endpoint, code: str, reason: str) -> None:
        _log.warning("a webhook is disabled", webhook=endpoint.name, code=code, reason=reason)
        event = WebhookDisabled(
            id=f"{self._who}.disabled.{secrets.token_hex(8)}",
            at=self._clock(),
            by=self._who,
            webhook=endpoint.name,
            code=code,
            reason=clipped(reason),
        )
        await self._say(event)

    async def tested(self, endpoint: Endpoint, request: WebhookTestRequested, outcome: Outcome) -> None:
        event = WebhookTested(
            id=f"{self._who}.tested.{secrets.token_hex(8)}",
            at=self._clock(),
            by=self._who,
            webhook=endpoint.name,
            test=request.id,
            delivered=outcome.delivered,
            status=outcome.status,
            reason=clipped(outcome.reason),
        )
        await self._say(event)

    async def _say(self, event: Event) -> None:
        subject = subjects.fact(self._cluster, type(event).__name__, self._who)
        await until_answered(lambda: append_event(self._log, subject, event), "reporting on a webhook")
