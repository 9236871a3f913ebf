"""A log under pseudonyms that replays as the original does: to share an incident, or to keep one as a test.

    pass 1   collects every name (`pseudonyms.Names`), and the rounds that depend on the state they were decided on
    pass 2   replaces names with pseudonyms (`disguise`), and folds the result along the way

Sequences, times, numbers and the order of names stay, so the same is decided again.  A digest, and sentences such as
"no node has 4 cores free (closest: n7 …)", derive from a state; they are not translated but derived again from the
renamed state at the round's basis.  No word of the original therefore remains, and an audit has the same result.
Each decision is made again for that, as in an audit, and it takes about as long.

Some things do not survive: seals; reasons and messages that people or programs wrote, and sentences of a master that cannot be
derived again (for example, another version of the policy decided it), which become `disguise.WITHHELD`; records that
this build cannot read, with only their kind and approximate size.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, get_args

import msgpack
import msgspec

from dorm.core.admission import app_id, name_of
from dorm.core.evolve import GapError, evolve
from dorm.core.next_round import decide
from dorm.core.snapshot import dump
from dorm.core.state import State, can_be_kept, digest
from events import kinds as k
from events import subjects
from events.codec import decode, encode, submission_of
from events.log.interface import ReadableLog
from events.log.records import LogDamaged, LogRefused, Record, on_subjects
from events.log.stores import MemorySnapshots
from events.spec.requirements import requirement
from replay.export.disguise import Disguise
from replay.export.pseudonyms import Names, Pseudonyms, words_of
from replay.export.selection import Selection, range_of
from replay.frames import build, state_after
from replay.moments import AtSequence
from replay.whole_file import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from replay import Progress

_AGENTS = tuple(kind for kind in k.EVENTS if kind.KIND.writers[0] == "node")
_AGENT_KINDS = frozenset(cls.__name__ for cls in _AGENTS)
_OF_MASTERS = tuple(kind for kind in k.EVENTS if kind.KIND.writers[0] == "master" and kind.KIND.stored == "log")
_MASTERS = frozenset(cls.__name__ for cls in _OF_MASTERS)
"""Kinds that masters publish in addition to their rounds."""
_KINDS = frozenset(cls.__name__ for cls in get_args(k.Published))
_ANSWERED = tuple(kind for kind in k.EVENTS if kind.KIND.answered and kind is not k.AppSubmitted)
"""Requests with an answer; `submission_of` finds the submissions, also unreadable ones."""
_SOLVED = (k.Resized, k.IdleTicked, k.PolicyFailed)
_REASONED = (k.AppRejected, k.AppFailed, k.AppCancelled, k.GenerationFailed)
_NO_DIGEST = "0" * 32
_LARGE = 1000
"""Submissions of more bytes keep their size: how many answers fit into a round depends on the sizes of the submissions."""


class Question(msgspec.Struct, gc=False):
    """A round that depends on the state at its basis."""

    seq: int
    at: int
    allocated: bool
    reasons: bool
    """Whether it holds sentences, or only the digest."""


class Answer(msgspec.Struct):
    """The result of the state at the basis, under other names, for a round."""

    digest: str
    facts: list[Any]


# --- the first pass -----------------------------------------------------------------------------------------------------


class Survey:
    """Collects names and questions."""

    def __init__(self, state: State) -> None:
        """`state` is that before the first record."""
        self.names = Names()
        self.questions: dict[int, list[Question]] = {}
        """Questions by basis."""
        self._disguise = Disguise(self)
        if state.seq:
            self._disguise.struct(state)
            for app in state.apps.values():
                self._app(app.id, app.name, app.submission)
            for submission in state.submissions.values():
                self._submitted(submission.id, submission.spec)

    # The part of `Naming` that collects names: the return values are not used.

    def name(self, kind: str, name: str) -> str:
        known: set[str] = getattr(self.names, kind)
        if kind == "requirements" and name not in known:
            self._require(name)
        known.add(name)
        return name

    def request(self, text: str) -> str:
        return ""

    def beginning(self, prefix: str) -> list[str]:
        return []

    def take(self, record: Record) -> None:
        """Collect the names and questions of the next record."""
        names, event = self.names, decode(record)
        parts = record.subject.split(".")
        names.clusters.add(_cluster(parts))
        if isinstance(event, k.Round):
            names.masters.add(event.by)
            self._round(record.seq, event)
        elif _kind(parts) != k.Round.__name__:
            who = subjects.who_of(record.subject)
            drains_itself = isinstance(event, k.NodeDrainRequested) and who == subjects.token(event.node)
            authors = names.agents if drains_itself or _kind(parts) in _AGENT_KINDS else names.users
            authors |= {event.by, who}
            if _kind(parts) in _MASTERS:
                names.masters.add(event.by)
            if _kind(parts) not in _KINDS:
                names.kinds.add(_kind(parts))
        if isinstance(event, _ANSWERED) or submission_of(event):
            names.requests.add(event.id)
        if isinstance(event, k.AppSubmitted):
            self._submitted(event.id, event.spec)
        if not isinstance(event, k.Unknown | k.Unreadable):
            self._disguise.struct(event)

    def _round(self, seq: int, event: k.Round) -> None:
        asks = reasons = False
        for fact in event.events:
            if isinstance(fact, k.AppAccepted):
                self._app(fact.app, fact.spec.name, fact.submission)
            asks |= isinstance(fact, _SOLVED)
            reasons |= isinstance(fact, (*_REASONED, k.RecordsRefused)) or (
                isinstance(fact, k.Resized) and bool(fact.reasons)
            )
        if (asks or reasons) and event.basis < seq:
            question = Question(seq, event.at, event.allocated, reasons)
            self.questions.setdefault(event.basis, []).append(question)

    def _submitted(self, submission: str, spec: Any) -> None:
        name = name_of(spec)
        if name and can_be_kept(spec):
            self._app(app_id(name, submission), name, submission)

    def _app(self, app: str, name: str, submission: str) -> None:
        self.names.app_names.add(name)
        if app == app_id(name, submission):
            self.names.apps[app] = name, submission

    def _require(self, text: str) -> None:
        try:
            expression = requirement(text).expression
        except ValueError:
            return
        if expression is not None:
            labels, values = words_of(expression)
            self.names.labels |= labels
            self.names.values |= values


def _kind(parts: list[str]) -> str:
    """Return the kind that a subject's tokens name, "" for a foreign subject."""
    return subjects.kind_of(".".join(parts))


def _cluster(parts: list[str]) -> str:
    return parts[1] if len(parts) > 1 else ""


# --- the second pass ----------------------------------------------------------------------------------------------------


class Rewriter:
    """Rewrites each record, and folds the result."""

    def __init__(self, pseudonyms: Pseudonyms, questions: dict[int, list[Question]], before: State) -> None:
        """`before` is the state before the first record, under its own names."""
        self._names = pseudonyms
        self._disguise = Disguise(self)
        self._questions = questions
        self._answers: dict[int, Answer] = {}
        # A copy, since parts without a name are not copied by the disguise.
        self.state: State = self._disguise.struct(msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=State))
        self._answer()

    def name(self, kind: str, name: str) -> str:
        pseudonym: str = getattr(self._names, kind)[name]
        return pseudonym

    def request(self, text: str) -> str:
        return self._names.requests.get(text, "")

    def beginning(self, prefix: str) -> list[str]:
        return [name for app, name in self._names.app_ids.items() if app.startswith(prefix)]

    def take(self, record: Record) -> Record:
        """Return the next record under other names.  Raises GapError."""
        event = decode(record)
        made = Record(record.seq, record.time, self._subject(record.subject, event), self._body(record, event))
        if record.msg_id or isinstance(event, k.Unreadable):
            made.msg_id = self._id(event, record.seq)
        evolve(self.state, made)
        self._answer()
        return made

    # --- envelopes ------------------------------------------------------------------------------------------------------

    def _subject(self, subject: str, event: Any) -> str:
        parts, names = subject.split("."), self._names
        kind, cluster = _kind(parts), names.clusters[_cluster(parts)]
        if kind == k.Round.__name__:
            return subjects.rounds(cluster)
        if kind in _MASTERS:
            return subjects.fact(cluster, kind, subjects.MASTER)
        if len(parts) not in (4, 5) or not kind:
            return f"dorm.{cluster}.foreign"
        who, shown = subjects.who_of(subject), kind if kind in _KINDS else names.kinds[kind]
        user = names.user_tokens.get(who) or "user"
        if kind in _AGENT_KINDS or (kind == k.NodeDrainRequested.__name__ and who in names.node_tokens):
            node: str = getattr(event, "node", "")
            own = node and subjects.token(node) == who
            user = subjects.token(names.nodes[node]) if own else names.node_tokens.get(who, user)
        return f"dorm.{cluster}.{shown}.{user}" if len(parts) == 4 else f"dorm.{cluster}.report.{user}.{shown}"

    def _id(self, event: k.Event, seq: int) -> str:
        if isinstance(event, k.Round):
            return f"{self._names.masters[event.by]}.{event.epoch}.{event.basis}"
        return self._names.requests.get(event.id) or f"event-{seq}"

    def _by(self, event: k.Event) -> str:
        names = self._names
        if isinstance(event, (k.Round, *_OF_MASTERS)):
            return names.masters[event.by]
        if isinstance(event, (*_AGENTS, k.NodeDrainRequested)):  # A node that stops drains itself.
            return names.nodes.get(event.by) or names.node_tokens.get(event.by) or names.users[event.by]
        return names.users[event.by]

    # --- bodies ---------------------------------------------------------------------------------------------------------

    def _body(self, record: Record, event: k.Event) -> bytes:
        about = 1 << max(0, len(record.body).bit_length() - 1)
        if isinstance(event, k.Unreadable):
            return b"\xc1" + bytes(about - 1)
        if isinstance(event, k.Unknown):
            version = event.name.rpartition(" v")[2]
            known = subjects.kind_of(record.subject) in _KINDS and version.isdecimal()
            more = {"v": min(int(version), _LATEST)} if known else {}
            return _filled(more, about)
        made = self._disguise.struct(event)
        if isinstance(made, k.Round):
            made = self._answered(record.seq, made)
        body = encode(msgspec.structs.replace(made, id=self._id(event, record.seq), by=self._by(event)))
        if isinstance(event, k.Round) and not _all_of(event, record.body):
            # A build that knows more fields than this one wrote it, and an audit has to see that.
            return _with_more(msgpack.unpackb(body, strict_map_key=False), 0)
        if isinstance(event, k.AppSubmitted) and len(body) < len(record.body) > _LARGE:
            return _filled(msgpack.unpackb(body, strict_map_key=False), len(record.body))
        return body

    def _answered(self, seq: int, made: k.Round) -> k.Round:
        """Return a round with the digests and sentences that the state at its basis gives."""
        given = self._answers.pop(seq, None) or Answer(_NO_DIGEST, [])
        by_topic = {_topic(fact): fact for fact in given.facts}
        facts = []
        for fact in made.events:
            again = by_topic.get(_topic(fact))
            if isinstance(fact, k.RecordsRefused) and isinstance(again, k.RecordsRefused):
                fact = again
            if isinstance(fact, _SOLVED):
                fact = msgspec.structs.replace(fact, digest=given.digest)
            if isinstance(fact, k.Resized) and isinstance(again, k.Resized):
                fact = msgspec.structs.replace(fact, reasons=_said(fact.reasons, again.reasons))
            if isinstance(fact, _REASONED) and fact.reason and again is not None:
                fact = msgspec.structs.replace(fact, reason=again.reason, cause=again.cause)
                if isinstance(fact, k.AppRejected) and isinstance(again, k.AppRejected):
                    fact = msgspec.structs.replace(fact, code=again.code)
            facts.append(fact)
        return msgspec.structs.replace(made, events=facts)

    def _answer(self) -> None:
        state = self.state
        for question in self._questions.get(state.seq, ()):
            facts: list[Any] = []
            if question.reasons:
                try:
                    facts = decide(state, question.at, allocate=question.allocated).facts
                # A log that no master wrote can hold anything.
                except Exception:
                    facts = []
            self._answers[question.seq] = Answer(digest(state), facts)


def _all_of(event: k.Round, body: bytes) -> bool:
    """Return whether the event holds everything that its record does."""
    try:
        return encode(event) == body
    except OverflowError:  # JSON may hold a number that no body of ours can.
        return False


_LATEST = 2**62
"""Number in place of a later version: as unknown, and of a size that any body can hold."""


def _topic(fact: Any) -> tuple[Any, ...]:
    """Return the key under which two facts are about the same thing."""
    return type(fact), getattr(fact, "app", ""), getattr(fact, "submission", ""), getattr(fact, "generation", 0)


def _said(reasons: dict[str, k.Waiting], again: dict[str, k.Waiting]) -> dict[str, k.Waiting]:
    return {
        app: again[app] if app in again and again[app].code == reason.code else reason
        for app, reason in reasons.items()
    }


def _with_more(body: dict[str, Any], size: int) -> bytes:
    packed: bytes = msgpack.packb({**body, "withheld": bytes(size)})
    return packed


def _filled(body: dict[str, Any], size: int) -> bytes:
    """Pad a body to a size in bytes."""
    least = _with_more(body, 0)
    for more in range(size - len(least), -1, -1):
        if len(packed := _with_more(body, more)) <= size:
            return packed
    return least


# --- the log ------------------------------------------------------------------------------------------------------------


class AnonymizedLog(ReadableLog):
    """Reads through to another log, up to its end at the survey.  Every read starts at the log's start, whatever
    `after` is, since the sentences of a moment follow from everything before it."""

    def __init__(self, log: ReadableLog, survey: Survey, before: State, end: int, pseudonyms: Pseudonyms) -> None:
        self._log = log
        self._survey = survey
        self._before = before
        self._end = end
        self._pseudonyms = pseudonyms
        self._snapshots = MemorySnapshots()

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        if follow:
            text = "an anonymized log ends where its names were collected, and can't be followed"
            raise LogRefused(text, code="log.not_growing")
        rewriter = await in_thread(Rewriter, self._pseudonyms, self._survey.questions, self._before)

        def rewrite(batch: list[Record]) -> list[Record]:
            made = [rewriter.take(record) for record in batch if record.seq <= self._end]
            return on_subjects([record for record in made if record.seq > after], subjects)

        try:
            async with aclosing(self._log.read(after=self._before.seq)) as batches:
                async for batch in batches:
                    for begin in range(0, len(batch), _AT_ONCE):
                        if made := await in_thread(rewrite, batch[begin : begin + _AT_ONCE]):
                            yield made
                    if batch[-1].seq >= self._end:
                        break
        except GapError as error:
            raise LogDamaged(str(error)) from None

    async def selection_of(self, selection: Selection) -> Selection:
        """Return the selection here that matches a selection of the original.  Raises MomentError, and as `read` does."""
        apps, users = self._pseudonyms.app_references, self._pseudonyms.users
        # Sequences are the same, and are found in the original without rewriting anything.
        part = await range_of(self._log, selection)
        return msgspec.structs.replace(
            selection,
            since=None if selection.since is None else AtSequence(part.after + 1),
            until=None if selection.until is None else AtSequence(min(part.end, self._end)),
            apps=tuple(apps.get(app, _NOBODY) for app in selection.apps),
            users=tuple(users.get(user, _NOBODY) for user in selection.users),
        )

    @property
    def pseudonyms(self) -> dict[str, dict[str, str]]:
        """The originals of the pseudonyms, by kind: never to be shared with the log."""
        return self._pseudonyms.key()

    async def start(self) -> int:
        return self._before.seq

    async def end(self) -> int:
        return self._end

    async def at_time(self, time: int) -> int:
        return min(await self._log.at_time(time), self._end)

    @property
    def snapshots(self) -> MemorySnapshots:
        return self._snapshots

    @property
    def anonymized(self) -> bool:
        return True

    async def torn(self) -> str:
        return await self._log.torn()

    async def close(self) -> None:
        await self._log.close()


_NOBODY = "nobody"
_AT_ONCE = 1000
"""Records that are rewritten before a waiting cancellation is noticed."""


async def anonymized(log: ReadableLog, *, keep_nodes: bool = False, progress: Progress | None = None) -> AnonymizedLog:
    """Return a log up to its present end, under pseudonyms.  Raises what `log.read` raises, and LogRefused for a selection of
    records (`sparse`), which cannot be folded."""
    if log.sparse:
        text = "a selection of records can't be anonymized; anonymize the log, and select from that"
        raise LogRefused(text, code="log.sparse")
    start, end = await log.start(), await log.end()
    before, _ = await state_after(log, start) if start else (State(), "")
    survey = await asyncio.to_thread(Survey, before)

    def take(batch: Sequence[Record]) -> None:
        for record in batch:
            if record.seq <= end:
                survey.take(record)

    if start < end:
        async with aclosing(log.read(after=start)) as batches:
            async for batch in batches:
                await in_thread(take, batch)
                if progress:
                    progress(min(batch[-1].seq, end) - start, end - start)
                if batch[-1].seq >= end:
                    break
    pseudonyms = await asyncio.to_thread(Pseudonyms, survey.names, keep_nodes=keep_nodes)
    made = AnonymizedLog(log, survey, before, end, pseudonyms)
    if start:
        first = await asyncio.to_thread(Rewriter, pseudonyms, {}, before)
        await made.snapshots.put(*dump(first.state, build=build()))
    return made
