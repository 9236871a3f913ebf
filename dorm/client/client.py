"""The client: submit an app, watch it, cancel it.

    async with await Client.open("nats://127.0.0.1:4222") as client:
        app = await client.submit({"name": "hello", "command": ["sleep", "5"], "demand": {"cpu": 1}})
        await client.wait(app.id)

A client reads the log like any other reader: it folds the same records as the master, and queries no other process.

    ClientError
    ├── NotFound      no app or node of this name
    ├── Refused       the master refused the request; the message says why
    ├── NoAnswer      stored on the log, but no master has answered yet
    └── Unsettled     sent, but it is unknown whether it is stored; the same again settles it

Appends are retried under the same id until their outcome is known: stored, or refused with an error and certainly not
stored. If the log is unavailable, the call fails at once (`events.log.records.NotSent`); if its answer was lost, the
client sends the same again under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import secrets
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from dorm.client import tail
from dorm.client.answers import facts_after
from dorm.client.errors import NoAnswer, NotFound, Refused, Unsettled
from dorm.client.finding import find_app
from dorm.client.output import Output
from dorm.client.reports import newest as newest_reports
from dorm.core.admission import app_id
from dorm.core.authority import forbidden
from dorm.core.evolve import check_update
from dorm.core.settings import all_after
from dorm.core.shared_folder import check_folder
from dorm.core.state import App, RefusedChange, Settings, State
from dorm.history import with_history
from dorm.live_fold import Fold
from events import subjects
from events.appending import append_event, is_stored_at
from events.identities import owned_id
from events.kinds import (
    AppAccepted,
    AppCancelRequested,
    AppRejected,
    AppSubmitted,
    AppUpdated,
    Event,
    LogSealed,
    NodeDrainRequested,
    PolicyChanged,
    SealRequested,
)
from events.limits import LONGEST_NAME
from events.log.records import LogFull, LogRefused, LogUnavailable, NotSent
from events.log.stores import EVERY_APP
from events.nats.connection import Connection
from events.spec import AppSpec, CheckedSpec, SpecError, check_spec
from events.spec.variables import check_names
from events.times import SettingRefused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from dorm.core.progress import Newest
    from dorm.core.state import App, RefusedChange, Settings, State
    from events.log.interface import Bus, EventLog
    from events.log.leadership import Leadership
    from events.log.records import Record
    from events.nats.stores import Comparisons
    from events.positions import Logged, Position

T = TypeVar("T")

_PAUSE_S = 0.2
_TRY_S = 5.0
_SETTLE_S = 30.0
"""Seconds for which an append with an unknown outcome is retried."""


class Client:
    """One user's view of one cluster."""

    def __init__(
        self,
        log: EventLog,
        bus: Bus,
        cluster: str,
        *,
        user: str | None = None,
        connection: Connection | None = None,
        clock: Callable[[], int] = time.time_ns,
        settle_s: float = _SETTLE_S,
        begin: Callable[[], Awaitable[State]] | None = None,
    ) -> None:
        """`settle_s`: how long, in seconds, an append with an unknown outcome is retried; `begin` returns the state that this
        client folds from, by default that of the newest snapshot."""
        self.log = log
        self.cluster = cluster
        self.user = subjects.token(user or (connection.user if connection is not None else "") or login_name())
        self.stored = 0
        """The sequence of this client's latest request on the log, 0 before the first."""
        self.bus = bus
        self._connection = connection
        self._clock = clock
        self._settle_s = settle_s
        self._fold = Fold(log, begin)
        self._outages = 0
        self.output = Output(bus, log, cluster, connection, lambda: self._outages)
        self._report_outage: Callable[[bool], None] = lambda _: None
        if connection is not None:
            connection.report_outages(self._on_outage)

    @classmethod
    async def open(cls, url: str, cluster: str = "local", *, user: str | None = None, timeout: float = 5.0) -> Client:
        """Connect.  Raises LogUnavailable or LogRefused (no such cluster, for one) with a line that says what to do."""
        connection = await Connection.open(url, cluster, name="dorm-client", timeout=timeout)
        with_history(connection)
        return cls(connection.log, connection.bus, cluster, user=user, connection=connection)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    @property
    def leadership(self) -> Leadership | None:
        """The lease of the cluster's masters; None for a client that was made from a log without a connection."""
        return self._connection.leadership if self._connection is not None else None

    def report_outages(self, tell: Callable[[bool], None]) -> None:
        """From now on call `tell(True)` when the connection is lost, and `tell(False)` when it is back."""
        self._report_outage = tell

    def _on_outage(self, lost: bool) -> None:
        self._outages += lost
        self._report_outage(lost)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- reading --------------------------------------------------------------------------------------------------------

    async def state(self) -> State:
        """Return the state, folded up to the end of the log.  The same object each time, brought up to date."""
        return await self._fold.catch_up()

    async def look(self, question: Callable[[State], T]) -> T:
        """Return what `question` finds in the state at the end of the log."""
        return question(await self.state())

    async def glance(self, question: Callable[[State], T]) -> T:
        """Return what `question` finds in the state as it was read last, which costs no request to the log after the first."""
        return question(self._fold.state) if self._fold.begun else await self.look(question)

    async def reported(self, app: str = EVERY_APP) -> Newest:
        """Return the newest progress of each app, or of one by its id, from the stream beside the log."""
        return await newest_reports(self.log, app)

    async def watch(self) -> AsyncGenerator[tuple[State, Sequence[Event]], None]:
        """Yield the state after each batch, with the events just folded; first at the current end of the log."""
        state = await self.state()
        yield state, []
        async for batch in self.log.read(after=state.seq, follow=True):
            yield state, [self._fold.take_new(record) for record in batch]

    async def records(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Record]:
        """Yield raw records; `events.codec.decode` reads them."""
        async for batch in self.log.read(after=after, follow=follow):
            for record in batch:
                yield record

    async def events(
        self,
        *,
        after: Position | str | int | None = None,
        since: datetime | timedelta | None = None,
        kinds: Iterable[str] = (),
        apps: Iterable[str] = (),
        users: Iterable[str] = (),
        nodes: Iterable[str] = (),
        follow: bool = True,
    ) -> AsyncGenerator[Logged, None]:
        """Yield every event of the log in order, each once, the facts of a master's round one by one; then new ones.

            async for logged in client.events(kinds=["AppFailed"], since=timedelta(hours=1)):
                print(logged.position, logged.event)

        It outlives outages and restarts of the server.  `after` is the position (`118.2`) of the last event that was
        processed, so a program that keeps it resumes exactly there; `since` is a log time, or how long before the log's last
        record.  Filters are those of `dorm.core.query.concerns`: all given filters have to match, each by any of its values;
        apps by name or id.  Without `follow` it ends at the log's end as of the call.  To stop early, break and drop the
        generator, or close it (`contextlib.aclosing`).

        Raises ValueError for an invalid position or kind or a time without a zone, LogDamaged where the log ends before
        `after`, and LogUnavailable if the log is unavailable (with `follow`: only once the client is closed).
        """
        wanted = tail.Filter(kinds=tuple(kinds), apps=tuple(apps), users=tuple(users), nodes=tuple(nodes))
        tail.check_kinds(wanted.kinds)
        begin = await tail.begin(self.log, after, since)
        tailed = tail.Tail(self.log, self.cluster, wanted, after=begin, follow=follow).events()
        async with contextlib.aclosing(tailed) as events:
            async for logged in events:
                yield logged

    async def app(self, name_or_id: str) -> App:
        """Return an app by name or id.  Raises NotFound."""
        return await self.look(lambda state: find_app(state, name_or_id, self.user))

    async def wait(self, name_or_id: str, *, stopped: bool = False) -> App:
        """Wait until the app has ended, and with `stopped` until none of its containers runs.  Raises NotFound."""
        named = await self.app(name_or_id)
        async for state, _ in self.watch():
            app = state.apps.get(named.id)
            if app is not None and app.ended and not (stopped and app.stopping):
                return app
        raise AssertionError("a log that is followed does not end")

    # --- asking ---------------------------------------------------------------------------------------------------------

    async def submit(
        self, spec: AppSpec | dict[str, Any], *, id: str | None = None, answer_timeout: float = 10.0
    ) -> App:
        """Submit a spec, checked or as a document, and wait for the master's answer.

        A repeat with the same `id` is the same submission.  Raises SpecError before anything is sent; Refused; NoAnswer;
        Unsettled; the log's errors, each of which means that the submission is not stored.
        """
        document = msgspec.to_builtins(spec) if isinstance(spec, AppSpec) else spec
        checked = spec if isinstance(spec, CheckedSpec) else check_spec(document)
        check_names(checked)
        if checked.user == "anonymous":
            document = {**document, "user": self.user}
        event_id = await self.submission_id(id)
        event = AppSubmitted(id=event_id, at=self._clock(), by=self.user, spec=document)
        seq = await self._publish(event)
        app = app_id(checked.name, event_id)
        with _stored("the submission"):
            # A repeat whose answer is folded already gets no second answer.
            if id is None or not await self.look(lambda state: app in state.apps):
                await self._answer_to(event, seq, answer_timeout)
            stored = await self.app(app)
            await self._check_own(event, seq, stored.seq)
            return stored
        raise AssertionError("it returns or raises")

    async def submission_id(self, chosen: str | None = None) -> str:
        """Return an id for a submission, of this user's tenant on a cluster that has tenants.  Raises Refused for an id
        that is too long."""
        tenant = await self.glance(lambda state: state.known.tenant_of(self.user) if state.known is not None else "")
        id = owned_id(tenant, chosen or f"{self.user}.{secrets.token_hex(8)}")
        if len(id) > LONGEST_NAME:
            raise Refused(f"a submission's id has at most {LONGEST_NAME} characters", code="submission.id.too_long")
        return id

    async def check_authority(self, event: Event) -> None:
        """Raises Refused if, by the log, this user may not publish this event: its record would change
        nothing."""
        refused = await self.glance(lambda state: forbidden(state, event, self.user))
        if refused is not None:
            raise Refused(refused.reason, code=refused.code)

    async def _answer_to(self, submission: AppSubmitted, after: int, timeout: float) -> None:
        """Wait for the answer to a submission.  Raises Refused, NoAnswer."""
        no_answer = NoAnswer(
            "the submission is stored, and no master has answered yet (`dorm masters`); `dorm ps` will show it once one runs"
        )
        async with contextlib.aclosing(facts_after(self.log, after, timeout=timeout, no_answer=no_answer)) as facts:
            async for fact in facts:
                if not isinstance(fact, AppAccepted | AppRejected) or fact.submission != submission.id:
                    continue
                if isinstance(fact, AppRejected) and fact.refused != "submission":
                    continue
                await self._check_own(submission, after, int(fact.cause) if fact.cause.isdecimal() else after)
                if isinstance(fact, AppRejected):
                    raise Refused(fact.reason, code=fact.code)
                return

    async def _check_own(self, submission: AppSubmitted, stored: int, answered: int) -> None:
        """Raises Refused if the master answered another submission than this one, which is stored at `stored`: another
        submission had used its id first, and the first one counts."""
        subject = subjects.fact(self.cluster, AppSubmitted.__name__, self.user)
        if answered != stored and not await is_stored_at(self.log, answered, subject, submission):
            raise Refused(
                f"the id {submission.id} was taken by another submission (record {answered}); submit with an id that "
                "nobody can guess, or without one",
                code="submission.id_taken",
            )

    async def update(
        self, name_or_id: str, *, weight: float | None = None, n_min: int | None = None, n_max: int | None = None
    ) -> App:
        """Change weight or bounds.  Raises NotFound, Refused."""
        app = await self.app(name_or_id)
        if app.ended:
            raise Refused(f"{app.name} has ended ({app.ended})", code="app.ended")
        update = AppUpdated(
            id=self._new_id(), at=self._clock(), by=self.user, app=app.id, weight=weight, n_min=n_min, n_max=n_max
        )
        try:
            await self.look(lambda state: check_update(state, update, state.apps.get(app.id)))
        except SpecError as error:
            raise Refused(str(error), code=error.code) from None
        await self._publish(update)
        with _stored("the change"):
            return await self.app(app.id)
        raise AssertionError("it returns or raises")

    async def cancel(self, name_or_id: str, reason: str = "", *, kill: bool = False) -> App:
        """Request the app's end, which follows on the log.  With `kill` its containers get neither a checkpoint nor any grace
        time, and what still stops of an ended app is killed as well.  Raises NotFound, Refused."""
        app = await self.app(name_or_id)
        if app.ended and not (kill and app.stopping):
            raise Refused(f"{app.name} has ended already ({app.ended})", code="app.ended")
        fields: dict[str, Any] = {"id": self._new_id(), "at": self._clock(), "by": self.user, "reason": reason}
        await self._publish(AppCancelRequested(app=app.id, kill=kill, **fields))
        return app

    async def drain(self, node: str, *, drain: bool = True, reason: str = "", maintenance: bool = False) -> None:
        """Empty a node by adjustments, for `maintenance` of the machine or otherwise, or use it again.  Raises NotFound."""
        if not await self.look(lambda state: node in state.nodes):
            raise NotFound(f"there is no node {node!r}; `dorm nodes` lists them", code="node.not_found")
        await self.ask(NodeDrainRequested, node=node, drain=drain, reason=reason, maintenance=maintenance)

    async def ask(self, kind: type[Event], **fields: Any) -> int:
        """Publish a request of this user, under a new id unless `fields` has one; return its sequence.  Raises Refused,
        Unsettled, and the log's errors."""
        return await self._publish(kind(**{"id": self._new_id(), "at": self._clock(), "by": self.user, **fields}))

    async def last_heard(self, node: str) -> int:
        """Return when the last heartbeat of a node was stored (UTC ns), 0 if there is none."""
        record = await self.bus.last_report(subjects.report(self.cluster, node))
        return record.time if record is not None else 0

    async def change_policy(self, change: PolicyChanged) -> Settings:
        """Change settings of the cluster from the next round on; return the settings once the change is folded.

        Raises Refused before anything is published for an invalid policy or parameters, for harmful times and for a folder
        of checkpoints that no node has; and afterwards if the fold refuses the change because another client changed the
        settings meanwhile."""

        def check(state: State) -> None:
            all_after(state.settings, change, state.policy_plugins)
            check_folder(state, change)

        def outcome(state: State) -> tuple[RefusedChange | None, Settings]:
            refused = next(
                (refused_change for refused_change in state.refused_changes if refused_change.id == event.id), None
            )
            return refused, msgspec.structs.replace(state.settings)

        try:
            await self.look(check)
        except SettingRefused as error:
            raise Refused(str(error), code=error.code) from None
        event = msgspec.structs.replace(change, id=self._new_id(), at=self._clock(), by=self.user)
        await self._publish(event)
        with _stored("the change"):
            refused, settings = await self.look(outcome)
            if refused is not None:
                text = f"someone else changed the settings at the same moment: {refused.reason}"
                raise Refused(text, code=refused.code)
            return settings
        raise AssertionError("it returns or raises")

    def comparisons(self, policy: str) -> Comparisons | None:
        """Return where a shadow of this policy publishes; None for a client without a connection of its own."""
        return self._connection.comparisons(policy, self.user) if self._connection is not None else None

    async def seal(self, *, answer_timeout: float = 10.0) -> LogSealed:
        """Have the master seal the log now; return the seal, which covers all earlier records.  Raises NoAnswer."""
        request = await self._publish(SealRequested(id=self._new_id(), at=self._clock(), by=self.user))
        no_answer = NoAnswer(
            "no master has sealed the log yet; the next one that runs and has a key will, within a minute",
            code="master.no_seal",
        )
        rounds = [subjects.rounds(self.cluster)]
        waited = facts_after(self.log, request, timeout=answer_timeout, no_answer=no_answer, subjects=rounds)
        async with contextlib.aclosing(waited) as facts:
            async for fact in facts:
                if isinstance(fact, LogSealed) and fact.upto >= request:
                    return fact
        raise AssertionError("it returns or raises")

    def _new_id(self) -> str:
        return f"{self.user}.{secrets.token_hex(8)}"

    async def _publish(self, event: Event) -> int:
        """Append an event; return its sequence. Raises Refused if this user may not publish it, Unsettled, and the
        log's errors if the event is certainly not stored."""
        await self.check_authority(event)
        subject = subjects.fact(self.cluster, type(event).__name__, self.user)
        ends = asyncio.get_running_loop().time() + self._settle_s
        sent = False
        while True:
            try:
                self.stored = (await append_event(self.log, subject, event, timeout=min(_TRY_S, self._settle_s))).seq
                return self.stored
            except (LogUnavailable, LogRefused) as error:
                sent = sent or not isinstance(error, NotSent | LogFull | LogRefused)
                if not sent:
                    raise
                # A refusal applies to the retry, and proves nothing about earlier tries.
                if isinstance(error, LogRefused) or asyncio.get_running_loop().time() > ends:
                    raise _unsettled(event, error) from None
            await asyncio.sleep(_PAUSE_S)

    async def logs(
        self,
        name_or_id: str,
        *,
        slot: int | None = None,
        generation: int | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the output of one container (the first slot unless `slot` is given) of the latest generation that started,
        or of the one with this number.

        With `follow`, an answer that a lost connection interrupted resumes where it was, or with new output only if a `tail`
        was requested.  Raises NotFound if nothing has started yet, and the bus's LogUnavailable and
        LogRefused.
        """
        app = await self.app(name_or_id)
        async for piece in self.output.read(app, slot=slot, generation=generation, follow=follow, tail=tail):
            yield piece


@contextlib.contextmanager
def _stored(what: str) -> Iterator[None]:
    """Guard the reads after a request was stored: an outage now must not be taken for a failure of the request."""
    try:
        yield
    except LogUnavailable as error:
        raise NoAnswer(
            f"{what} is stored, and the log can't be read now ({error}); `dorm ps` will show it", code="log.no_answer"
        ) from None


def _unsettled(event: Event, error: Exception) -> Unsettled:
    if isinstance(event, AppSubmitted):
        what, how = "the submission", f"submit it again with the id {event.id}, which can't make a second app"
    else:
        what, how = "what was asked for", "ask for it again, which does no harm if it is"
    return Unsettled(f"the log did not say whether {what} is stored ({error}); {how}", event.id)


def login_name() -> str:
    """Return the name of the user who runs this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "anonymous"
