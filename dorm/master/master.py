"""The master: follows the log, folds it, and publishes rounds.  A thin shell around `dorm.core`.

    run      load the newest snapshot, fold to the end, then loop: follow until it has the lease, lead until it is lost
    follow   fold what the leading master writes, listen to heartbeats, publish nothing
    lead     fold to the end, publish MasterElected, then loop: fold new records, publish what follows from them
    leader   what to publish and when, quiet time and timers: the pure state machine that this shell drives
             (`dorm.core.leader`)
    round    one message, chained to the previous round by its expected sequence, so no other master's round is overwritten
    nodes    their silence counts only while this master would have heard them (`dorm.master.failure_detector`)
    seal     from time to time, and before a clean stop, a seal of the log by this master's key (`dorm.master.sealing`)
    doubts   a master does not lead on a log that differs from what was read of it (`dorm.master.sealing`)

    MasterError
    ├── Deposed        another master was elected: this one no longer leads
    └── RoundsRefused  the log refuses this master's rounds: another master may succeed

The lease (`dorm.master.lease`) says which master should lead, and keeps masters from competing.  The fence ensures that no
two of them ever decide: a round is stored only directly after the last round that its master has folded.  A master whose
lease has lapsed publishes nothing until it is renewed.  If it is, no other master has led, and this one goes on in its
epoch.

The state lives only in memory and comes only from the log: a new master on the same log continues where this one stopped.

A round that the log refuses ends nothing: the master reports the refusal, waits, and decides again.  A refusal is about
the message or the server's settings, so an immediate retry would be refused too.  A master that holds a lease gives it
back after a few refusals: another master may have a server that accepts its rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from dorm.core.evolve import evolve
from dorm.core.leader import Leader, Moment
from dorm.core.state import State
from dorm.master.computing import LIMIT_S, Computing
from dorm.master.failure_detector import FailureDetector
from dorm.master.lease import Lease, LeaseLost, standing_in
from dorm.master.log_time import LogTime
from dorm.master.parts import PartWriter
from dorm.master.sealing import Integrity, Sealer, sign_round
from dorm.snapshots import SnapshotTaker
from events import subjects
from events.appending import append_event
from events.codec import decode, encode
from events.errors import DormError
from events.kinds import NodeJoined, NodeReported, Round
from events.log.records import LogError, LogRefused, LogUnavailable, Overtaken, until_answered
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from dorm.core.leader import Publish
    from dorm.master.lease import Apart
    from events.chain import SealKey
    from events.kinds import PolicyPlugin
    from events.log.interface import Bus, EventLog
    from events.log.leadership import Leadership
    from events.log.records import Record
    from events.log.stores import SnapshotInfo


# --- what a master raises ---------------------------------------------------------------------------------------------


class MasterError(DormError):
    """Base class of the errors that a master raises."""

    code = "master.failed"


class Deposed(MasterError):
    """Another master was elected after this one."""

    code = "master.deposed"


class RoundsRefused(MasterError):
    """The log refuses this master's rounds."""

    code = "master.rounds_refused"


# --- backoff for refused rounds ---------------------------------------------------------------------------------------

MOST_IN_A_ROW = 5
LONGEST_PAUSE_S = 10.0
_REFUSED_PAUSE_S = 0.5
"""Times the number of refusals in a row."""
_log = structlog.get_logger(__name__)


class Refusals:
    """Refusals of one master's rounds since one was stored."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def reset(self) -> None:
        """Note that a round was stored."""
        self._in_a_row = 0

    async def log_and_wait(self, event: Round, error: LogRefused) -> bool:
        """Log the refusal and wait.  Return True after each `MOST_IN_A_ROW` of them, without a wait."""
        self._in_a_row += 1
        kinds = [type(fact).__name__ for fact in event.events]
        _log.error(
            "the log refuses a round", reason=str(error), facts=kinds[:10], count=len(kinds), tries=self._in_a_row
        )
        if self._in_a_row % MOST_IN_A_ROW == 0:
            return True
        await asyncio.sleep(min(_REFUSED_PAUSE_S * self._in_a_row, LONGEST_PAUSE_S))
        return False


# --- master -----------------------------------------------------------------------------------------------------------

_TICK_S = 1.0
"""Seconds between checks for work that no record triggers: whether there is time for a snapshot."""
_QUIET_S = 5.0
"""Seconds without a record after which there is time for a snapshot."""
_QUEUE = 64
_LAST_SEAL_S = 2.0
_PULSE_S = 1.0
_PULSE_TIMEOUT_S = 2.0
_PAUSE_S = 0.2


def _loop_ns() -> int:
    """The event loop's monotonic clock."""
    return int(asyncio.get_running_loop().time() * SECOND)


class Master:
    """One master of one cluster.

    `name` must be unique among all masters, past ones included (it prefixes the ids of rounds and identifies the lease's
    holder).  `clock` returns UTC nanoseconds, for people to read: decisions go by log time.  `solve` runs the allocation, by
    default in a thread to keep the loop free; a simulation runs it inline.  `policy_limit_s` is how long one of Dorm's own
    policies may take.  Without a `key` the log is not sealed.

    With `leadership`, the master follows until it has the lease, which is good for `lease_s` seconds; without, it leads at
    once and ends when it is deposed.  `apart` gives the same lease over another connection, to a thread that renews it when
    this loop is late (`dorm.master.lease`); a simulation has none.  `witness` is the file that records what was read of the
    log; with `accept_log` the master leads even on a log that differs from it.  `plugins` loads the plug-in policies of this
    machine; it is called once, in a thread, before the master leads for the first time.
    """

    def __init__(
        self,
        log: EventLog,
        bus: Bus,
        cluster: str,
        *,
        name: str,
        clock: Callable[[], int],
        build: str = "",
        key: SealKey | None = None,
        solve: Callable[..., Any] = asyncio.to_thread,
        leadership: Leadership | None = None,
        lease_s: float = 2.0,
        apart: Apart | None = None,
        witness: Path | None = None,
        accept_log: bool = False,
        plugins: Callable[[], Sequence[PolicyPlugin]] | None = None,
        policy_limit_s: float = LIMIT_S,
    ) -> None:
        self.state = State()
        self.name = name
        self.elected = asyncio.Event()
        """Event that is set while this master leads, also while its lease has lapsed (`leads`)."""
        self._lease = Lease(leadership, name, lease_s, self._seen) if leadership is not None else None
        self._checked_lapses = 0
        """Lapses of the lease after which the log has been checked."""
        self._apart = apart
        self.settled = self._lease.settled if self._lease is not None else asyncio.Event()
        """Event that is set once it is known which master leads: this one, or another whose lease was seen to be renewed."""
        self._log = log
        self._bus = bus
        self._cluster = cluster
        self._clock = clock
        self._build = build
        self._solve = solve
        self.computing = Computing(solve, policy_limit_s)
        self._key = key
        self._sealer = Sealer(cluster, key)
        self._parts = PartWriter(log.parts, cluster, key)
        self._detector = FailureDetector(lambda: self._lease is not None and self._lease.troubled)
        self._leader = Leader(self.state, self._detector)
        self._time = LogTime()
        self._records: asyncio.Queue[list[Record]] = asyncio.Queue(_QUEUE)
        self._snapshots = SnapshotTaker(log)
        self._last: Record | None = None
        """The record that was folded last; None until the first record after a snapshot is folded."""
        self._last_at = 0.0
        """Loop time at which it was folded."""
        self._following = False
        self._integrity = Integrity(cluster, witness, accept=accept_log)
        self._refusals = Refusals()
        self._load_plugins = plugins
        self._plugins: Sequence[PolicyPlugin] = ()

    @property
    def leads(self) -> bool:
        """Whether this master certainly leads."""
        return self.elected.is_set() and (self._lease is None or self._lease.held)

    @property
    def lease_left_s(self) -> float:
        """Seconds for which this master certainly leads; 0 while it follows."""
        return self._lease.left_s if self._lease is not None else 0.0

    async def run(self) -> None:
        """Follow and lead until cancelled.  A master that is leading then seals the unsealed records and gives the lease back.
        Waits for a log that is unavailable.  Raises LogAltered, LogDamaged, GapError, LogRefused; LogClosed, and MasterError
        only without a lease."""
        end = await until_answered(self._open, "reading the log's end")
        try:
            async with self._standing_in(), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._snapshots.run())
                await self._fold_until(end)
                self._time.caught_up()
                if self._load_plugins is not None:
                    self._plugins = await self._solve(self._load_plugins)
                self._integrity.check(self._sealer.misfit)
                tasks.create_task(self._listen())
                tasks.create_task(self._integrity.remember(self._seen))
                while True:
                    await self._follow()
                    await self._lead_until_deposed()
        finally:
            if self._lease is not None:
                await self._lease.give_back()

    def _standing_in(self) -> AbstractAsyncContextManager[None]:
        if self._lease is None or self._apart is None:
            return contextlib.nullcontext()
        return standing_in(self._lease, self._apart)

    async def _open(self) -> int:
        """Load the newest snapshot, if there is one, and return the log's end, up to which everything is folded first.  Raises
        LogUnavailable, LogRefused, LogAltered, and LogDamaged if the log has lost records or is not protected."""
        self._log.check_room()
        snapshots: Sequence[SnapshotInfo] = ()
        with contextlib.suppress(LogError):  # Without snapshots, more records are folded.
            snapshots = await self._log.snapshots.infos()
        leader = await self._lease.sighting() if self._lease is not None else (0, "")
        end = await self._integrity.open(self._log, [info.seq for info in snapshots], leader)
        renamed = await self._log.renamed_upto()
        self._sealer = Sealer(self._cluster, self._key, renamed=renamed)
        newest = await self._snapshots.newest()
        if newest is not None and newest[0].chain:  # Without its chain, later records could not be sealed.
            self.state = newest[1]
            self._leader = Leader(self.state, self._detector)
            self._sealer = Sealer(self._cluster, self._key, self.state.seq, newest[0].chain, renamed=renamed)
            self._integrity.folded(self.state.seq, newest[0].chain)
            _log.info("from a snapshot", seq=self.state.seq, still_to_fold=end - self.state.seq)
        return end

    def _seen(self) -> tuple[int, str]:
        """How far this master has read the log, and the hash chain there."""
        return self.state.seq, self._sealer.chain

    async def _read(self) -> None:
        async for batch in self._log.read(after=self.state.seq, follow=True):
            await self._records.put(batch)

    async def _listen(self) -> None:
        async for record in self._bus.reports(subjects.reports(self._cluster)):
            # Tokens and names of nodes are equal: agents refuse other names.
            node = record.subject.split(".")[3]
            if node in self.state.nodes and self._is_enrolled(node) and self._is_holders(node, record):
                self._detector.note_heard(node, _loop_ns(), record.body)

    def _is_enrolled(self, node: str) -> bool:
        """Return whether the cluster knows this node; an open one knows all.  An expelled one is not kept alive."""
        known = self.state.known
        return known is None or node in known.nodes

    def _is_holders(self, node: str, record: Record) -> bool:
        """Return whether a heartbeat comes from the machine that holds the node's name.  Others do not keep the node alive."""
        event = decode(record)
        identity = event.identity if isinstance(event, NodeReported) else ""
        return identity == self.state.nodes[node].identity

    def _now(self) -> int:
        return self._time.now(self.state.time, _loop_ns())

    def _log_ahead_s(self) -> float:
        return round((self.state.time - self._now()) / SECOND, 1)

    def _moment(self) -> Moment:
        return Moment(self._now(), _loop_ns())

    # --- folding --------------------------------------------------------------------------------------------------------

    def _fold(self, batch: Sequence[Record]) -> None:
        at = _loop_ns()
        for record in batch:
            event, folded = evolve(self.state, record)
            stated = isinstance(event, Round) and folded == "applied" and not event.allocated
            self._time.folded(self.state.time, at, stated=stated)
            self._sealer.take(record, event)
            self._parts.see(self.state, record, event, folded)
            self._integrity.folded(record.seq, self._sealer.chain)
            if isinstance(event, NodeJoined | NodeReported) and self._is_from(event, record):
                self._detector.note_heard(event.node, _loop_ns())
        self._last, self._last_at = batch[-1], asyncio.get_running_loop().time()
        if not self._following:  # The leading master takes the snapshots.
            self._snapshots.offer(self.state, self._last, chain=self._sealer.chain)
        self._leader.folded(_loop_ns())

    def _is_from(self, event: NodeJoined | NodeReported, record: Record) -> bool:
        """Return whether this node of the cluster sent the record itself, from the machine that holds its name."""
        node = self.state.nodes.get(event.node)
        return (
            node is not None
            and self._is_enrolled(node.id)
            and subjects.who_of(record.subject) == subjects.token(node.id)
            and event.identity == node.identity
        )

    async def _fold_until(self, seq: int) -> None:
        while self.state.seq < seq:
            await self._fold_next()

    async def _fold_next(self) -> None:
        """Fold the next batch.  Others get a turn before it, since a queue that is never empty does not wait: a batch is the
        longest time for which folding keeps the loop."""
        await asyncio.sleep(0)
        self._fold(await self._records.get())

    async def _fold_waiting(self) -> None:
        """Fold what waits now, and not what comes meanwhile: a flood must not keep this master from publishing."""
        for _ in range(self._records.qsize()):
            await self._fold_next()

    # --- who leads ------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Follow until this master has the lease.  Decides and publishes nothing."""
        if self._lease is None:
            return
        self._following = True
        try:
            async with asyncio.TaskGroup() as tasks:
                folding = tasks.create_task(self._fold_on())
                await self._lease.win()
                folding.cancel()
        finally:
            self._following = False

    async def _fold_on(self) -> None:
        while True:
            await self._fold_next()

    async def _lead_until_deposed(self) -> None:
        """Lead until this master is deposed or loses the lease.  Without a lease, raises Deposed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._lease is not None:
                    tasks.create_task(self._lease.keep())
                await self._elect()
                tasks.create_task(self._probe_log())
                tasks.create_task(self.computing.load(self.state))
                tasks.create_task(self._parts.run(lambda: self.state))
                try:
                    await self._lead()
                except asyncio.CancelledError:
                    await self._seal_last()
                    raise
        except* (Deposed, LeaseLost, RoundsRefused) as ended:
            if self._lease is None:
                raise
            # A solver may still run in its thread; its result is discarded.
            _log.warning("leading no longer", reason=str(ended.exceptions[0]), epoch=self._leader.epoch)
            if ended.subgroup(RoundsRefused) is not None:
                await self._lease.give_back()
                await asyncio.sleep(LONGEST_PAUSE_S)
            self._lease.drop()
        finally:
            self.elected.clear()
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # A TaskGroup that raises for another reason does not pass it on.
            raise asyncio.CancelledError

    async def _elect(self) -> None:
        """Write the first round of a new epoch; every decision of earlier epochs is void from there on."""
        while True:
            await self._fold_until(await self._checked_end())
            self._integrity.check(self._sealer.misfit)
            try:
                self._log.check_room()
            except LogRefused as error:
                raise RoundsRefused(str(error)) from None
            if self._lease is not None:
                self._lease.publish_sightings()
            # A master that was not there before can't know what time it is by the log; its own clock says whether that leapt.
            now = self._now() if self.elected.is_set() or self._time.leapt else max(self._clock(), self.state.time)
            elected = self._leader.elect(now, build=self._build, key=self._sealer.public, policies=self._plugins)
            if await self._publish(elected):
                break
        self._detector.restart(self.state.nodes, _loop_ns())
        self._leader.elected(_loop_ns(), dirty_at=_loop_ns())
        _log.info("leading", epoch=self._leader.epoch, seq=self.state.seq, apps=len(self.state.names))
        self.elected.set()
        self.settled.set()

    async def _checked_end(self) -> int:
        """Return the log's end, waiting for the log while it is unavailable.  Raises LogDamaged, LogAltered."""
        while True:
            try:
                await self._integrity.ask(self._log)
                leader = await self._lease.sighting() if self._lease is not None else (0, "")
                return await self._integrity.reach(self._log, leader[0])
            except LogUnavailable:
                await asyncio.sleep(_PAUSE_S)

    async def _confirm_leading(self) -> None:
        """While the lease has lapsed, fold on, and return when it is renewed; the task that keeps it raises LeaseLost if it is
        lost.  Raises Deposed.

        The fence alone is not enough: a master that has folded its successor's rounds knows the sequence to write
        after.  After a lapse, even one that is over before this task takes a step, the log is checked as before an election,
        because its server may have been away."""
        lease = self._lease
        while lease is not None and not (lease.held and lease.lapses == self._checked_lapses):
            while not lease.held:
                self._check_epoch()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE_S):
                        await self._fold_next()
            self._checked_lapses = lease.lapses
            await self._fold_until(await self._checked_end())
            self._integrity.check(self._sealer.misfit)
        self._check_epoch()

    def _check_epoch(self) -> None:
        """Raises Deposed if another master has been elected."""
        if self._leader.deposed and self.elected.is_set():
            raise Deposed(f"another master leads since epoch {self.state.epoch}")

    # --- leading --------------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Carry out what the leader requests, and fold new records.  Nothing is folded while an allocation is computed: its
        basis is the state that the computation reads."""
        while True:
            if self._time.leapt:
                _log.warning(
                    "the log's clock is ahead of this master's; no time counts as passed", seconds=self._log_ahead_s()
                )
                await self._elect()
                self._parts.all_again(self.state)
            ready = self._leader.step(self._moment())
            publish = ready.publish
            if ready.ask:
                await self._ask(ready.ask)
                continue
            if ready.compute is not None:
                decision = await self.computing.allocation(self.state, ready.compute.now)
                publish = self._leader.computed(ready.compute, decision)
                if publish is None:
                    continue
            if publish is not None:
                if not await self._publish(publish):
                    self._leader.overtaken(publish, _loop_ns())
                continue
            await self._seal()
            await self._wait(ready.wake)

    async def _wait(self, wake: int | None) -> None:
        """Wait for records, until `wake` (monotonic ns) or the next tick."""
        loop = asyncio.get_running_loop()
        if self._last is not None and loop.time() - self._last_at > _QUIET_S:
            self._snapshots.offer(self.state, self._last, chain=self._sealer.chain, quiet=True)
        wait_s = _TICK_S if wake is None else min(_TICK_S, wake / SECOND - loop.time())
        if (seal_at := self._sealer.due()) is not None:
            wait_s = min(wait_s, (seal_at - self._now()) / SECOND)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait_s)):
                self._fold(await self._records.get())
            await self._fold_waiting()
        await self._confirm_leading()  # An idle master publishes nothing, so it would not notice a successor otherwise.

    async def _ask(self, nodes: Sequence[str]) -> None:
        """Read the stored heartbeats of silent nodes, before their silence has consequences."""
        for node in nodes:
            try:
                record = await self._bus.last_report(subjects.report(self._cluster, node))
            except LogError as error:
                _log.debug("a silent node can't be asked for", node=node, reason=str(error))
                self._leader.give_up_look(_loop_ns())
                return
            heartbeat = record.body if record and self._is_enrolled(node) and self._is_holders(node, record) else None
            self._detector.stored(node, heartbeat, _loop_ns())

    async def _seal(self) -> None:
        """Publish a seal if one is due.  If another round comes first, the next turn of the loop retries."""
        due, now = self._sealer.due(), self._now()
        if due is not None and due <= now:
            await self._publish(self._leader.round([self._sealer.seal(self._leader.epoch)], now))

    async def _seal_last(self) -> None:
        """Seal the unsealed records before stopping.  If that fails, the next master seals them."""
        if self._key is None or not self.leads:
            return
        try:
            async with asyncio.timeout(_LAST_SEAL_S):
                await self._fold_until(await self._log.end())
                while self._sealer.due() is not None:
                    if await self._publish(self._leader.round([self._sealer.seal(self._leader.epoch)], self._now())):
                        break  # Records that arrived in between stay unsealed: more would keep arriving.
        except (TimeoutError, LogError, MasterError) as error:
            _log.info("the last records are not sealed", reason=str(error) or "the log did not answer in time")

    async def _probe_log(self) -> None:
        """Probe the log.  If it answers but can't store (its disk is full, say), the failing lease makes heartbeats
        doubtful."""
        while True:
            with contextlib.suppress(LogError, TimeoutError):
                async with asyncio.timeout(_PULSE_TIMEOUT_S):
                    await self._log.end()
                if self._lease is None or not self._lease.troubled:
                    self._detector.note_answer(_loop_ns())
            await asyncio.sleep(_PULSE_S)

    # --- publishing -----------------------------------------------------------------------------------------------------

    async def _publish(self, publish: Publish) -> bool:
        """Publish a round, and fold up to it.  Return False if another round was stored first.  Raises Deposed,
        RoundsRefused."""
        # The last part makes the id unguessable, so no other publisher can use it first.
        id = f"{self.name}.{publish.round.epoch}.{publish.round.basis}.{secrets.token_hex(4)}"
        event = self._signed(msgspec.structs.replace(publish.round, id=id, by=self.name), publish.expected_last)
        seq = await self._append(event, publish.expected_last)
        if seq is None:
            await self._catch_up()
            return False
        await self._fold_until(seq)
        _log.debug("round", seq=seq, basis=event.basis, facts=[type(fact).__name__ for fact in event.events])
        return True

    def _signed(self, event: Round, previous: int) -> Round:
        """Return the round, signed if the cluster names its masters' keys.  Raises RoundsRefused: agents would not obey."""
        signed = sign_round(self._key, self.state.known, event, previous)
        if signed is None:
            text = "the cluster does not know this master's key; start it with a key that an admin has named"
            raise RoundsRefused(text, code="master.key.unknown")
        return signed

    async def _append(self, event: Round, expected_last: int) -> int | None:
        """Append a round.  Return its sequence, or None when another round was first or the log refused this one.  Retries
        while the log is unavailable: the id makes the retry idempotent, and after an ambiguous try a refusal may mean that the
        first try succeeded.  No other round has the same body, as its id has a random part."""
        subject = subjects.rounds(self._cluster)
        body = encode(event)
        pause = 0.1
        while True:
            await self._confirm_leading()
            try:
                stored = await append_event(self._log, subject, event, expected_last=expected_last)
            except LogUnavailable as error:
                _log.warning("the log can't be reached, trying again", reason=str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
            except Overtaken:
                last = await self._last_round()
                return last.seq if last and last.body == body else None
            except LogRefused as error:
                if await self._refusals.log_and_wait(event, error) and self._lease is not None:
                    raise RoundsRefused(f"the log refuses rounds: {error}") from None
                return None
            else:
                self._refusals.reset()
                if not stored.duplicate:
                    self._integrity.stored(stored.seq, event.basis)
                return stored.seq

    async def _last_round(self) -> Record | None:
        while True:
            try:
                return await self._log.last_on(subjects.rounds(self._cluster))
            except LogUnavailable:
                await asyncio.sleep(_PAUSE_S)

    async def _catch_up(self) -> None:
        last = await self._last_round()
        await self._fold_until(last.seq if last else 0)
        await self._confirm_leading()
