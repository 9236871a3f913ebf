"""Answers users who ask for their tenant's view of the log.

The user is a token of the request's subject, which the server guards; the log states the user's tenant. The requests
of one user are bounded, so that no other user waits for them: concurrent answers, requests per second, and folds of the past
(one for each tenant, `replay.tenants.shared_views`).  An answer is sent only as fast as the user receives it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from events import subjects
from events.log.interface import AskRefused
from events.log.records import LogError
from events.log.views import Failure, packed, pieces
from events.requests import ViewQuestion
from replay.tenants.log import OwnProgress
from replay.tenants.shared_views import Views

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from events.log.interface import Answerer, Bus, ReadableLog
    from events.log.records import Record

_MOST_AT_ONCE = 32
"""Concurrent answers to one user, including those that follow the log."""
_RATE, _BURST = 20.0, 60.0
"""Requests of one user per second, and how many may arrive at once."""
_MOST_WAIT_S = 2.0


QUEUE = "views"


async def serve(log: ReadableLog, bus: Bus, cluster: str, key: bytes) -> None:
    """Serve the views of a cluster until cancelled.  `key` of the pseudonyms.  Raises LogUnavailable when the connection is
    closed, LogRefused if the server forbids it."""
    views = Views(log, key)
    answering = Answering(views, bus, cluster, key)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(views.run(), name="views")
        tasks.create_task(bus.answer_each(subjects.views(cluster), answering.answerer, queue=QUEUE), name="answers")


class Answering:
    """Answers for one cluster."""

    def __init__(self, views: Views, bus: Bus, cluster: str, key: bytes) -> None:
        """`key` of the pseudonyms."""
        self._views = views
        self._bus = bus
        self._cluster = cluster
        self._names = hashlib.blake2b(key, digest_size=8, person=b"dorm names").hexdigest()
        self._busy: Counter[str] = Counter()
        self._asked: dict[str, tuple[float, float]] = {}
        """Time when each user last asked, and how many questions were left then."""

    def answerer(self, subject: str) -> Answerer:
        """Return what answers a request on this subject."""
        return partial(self._answer, subjects.who_of(subject))

    async def _answer(self, user: str, question: bytes) -> AsyncGenerator[bytes, None]:
        try:
            request = msgspec.json.decode(question, type=ViewQuestion)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise AskRefused(f"a question for a view is a JSON map: {error}", code="log.view.malformed") from None
        if self._busy[user] >= _MOST_AT_ONCE:
            raise AskRefused(f"{user} has {_MOST_AT_ONCE} answers open; end some", code="log.view.busy")
        self._busy[user] += 1
        try:
            await self._turn(user)
            yield packed(names=self._names)
            try:
                await self._views.end()
                async with contextlib.aclosing(self._values(user, request)) as values:
                    async for value in values:
                        for piece in pieces(packed(value=value)):
                            yield piece
            except (LogError, AskRefused) as error:
                yield packed(**msgspec.to_builtins(Failure(error.code, str(error))))
        finally:
            self._busy[user] -= 1
            if not self._busy[user]:
                del self._busy[user]

    async def _turn(self, user: str) -> None:
        """Wait until the user may send another request.  Raises AskRefused."""
        now = asyncio.get_running_loop().time()
        if len(self._asked) > 10_000:
            self._asked.clear()
        at, left = self._asked.get(user, (now, _BURST))
        left = min(_BURST, left + (now - at) * _RATE) - 1
        if left < -_MOST_WAIT_S * _RATE:
            raise AskRefused(f"{user} asks more than {_RATE:g} times a second; ask less often", code="log.view.busy")
        self._asked[user] = now, left
        if left < 0:
            await asyncio.sleep(-left / _RATE)

    def _tenant(self, user: str) -> str:
        """Raises AskRefused."""
        state = self._views.state
        known = state.known if state is not None else None
        tenant = known.tenant_of(user) if known is not None else ""
        if not tenant:
            raise AskRefused(f"the cluster knows no user {user}", code="identity.unknown")
        return tenant

    async def _values(self, user: str, request: ViewQuestion) -> AsyncGenerator[Any, None]:
        views, tenant = self._views, self._tenant(user)
        match request.what:
            case "read":
                await self._check_same(request)
                ends = () if request.follow else (await views.end(),)
                until = min((*ends, *(() if request.until is None else (request.until,))), default=None)
                async with contextlib.aclosing(views.read(tenant, after=request.after, until=until)) as batches:
                    async for batch in batches:
                        if self._tenant(user) != tenant:
                            raise AskRefused(f"{user} is of another tenant now; ask again", code="log.view.changed")
                        yield batch
            case "end":
                yield await views.end()
            case "time":
                yield await views.log.at_time(request.at)
            case "states":
                yield await views.infos(tenant)
            case "state":
                yield await views.snapshot(tenant, request.after)
            case "report":
                yield await self._report(request.node, tenant)
            case "progress":
                reading = self._progress(tenant).read(after=request.after, app=request.app, follow=request.follow)
                async with contextlib.aclosing(reading) as batches:
                    async for batch in batches:
                        if self._tenant(user) != tenant:
                            raise AskRefused(f"{user} is of another tenant now; ask again", code="log.view.changed")
                        yield batch
            case "newest progress":
                yield await self._progress(tenant).newest(request.app)
            case "end of progress":
                yield await self._progress(tenant).end()
            case "time of progress":
                yield await self._progress(tenant).at_time(request.at)

    def _progress(self, tenant: str) -> OwnProgress:
        return OwnProgress(self._views.log.progress, self._views, tenant)

    async def _check_same(self, request: ViewQuestion) -> None:
        """Check that the reader's last record is still there.  Raises AskRefused."""
        if request.after and request.at:
            record = await self._views.log.record_at(request.after)
            if record is not None and record.time != request.at:
                text = f"record {request.after} differs from the one read before: the log was replaced"
                raise AskRefused(text, code="log.damaged")

    async def _report(self, node: str, tenant: str) -> Record | None:
        """Return a node's last heartbeat, with the use of this tenant's containers alone."""
        record = await self._bus.last_report(subjects.report(self._cluster, node))
        return self._views.report(record, tenant) if record is not None else None
