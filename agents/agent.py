"""The agent: drives a runtime towards the desired state on the log, and reports its state.

Level-triggered: whatever woke it (a record, a hint of the engine, the clock), it lists, compares and acts, so a crash, a
restart or a repeated message ends in the same state.  Each container has at most one action under way.

Containers may run as long as the node's lease, which the runtime keeps.  Only stored heartbeats extend it, counted
from when they were sent.  An expired lease is never just extended: the agent first makes sure that nothing runs, joins
again, and reads its desired state.  The same applies to an agent whose name another machine holds (`agents.machine_identity`):
it waits until the log shows that none of the other machine's containers can run any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from typing import TYPE_CHECKING

import structlog

from agents import reconcile as r
from agents.actions import Actions
from agents.answering import answer_all
from agents.contract import listens
from agents.delays import Repeats
from agents.desired import BEATS, Desired
from agents.environment import Environments
from agents.fitness import Fitness, HealthProgram, look_at_machine
from agents.following import Follower
from agents.gpus import Gpus
from agents.ledger import Ledger
from agents.machine_identity import Identity, machine_id, refusal
from agents.node_lease import since_boot
from agents.node_status import Heartbeat, StatusAnswerer, Usage, Vitals
from agents.offers import NodesOffers, Offers
from agents.outbox import Outbox, ProgressFeed
from agents.outputs.folders import CheckpointFolder, Looks
from agents.reporter import Reporter
from agents.runtime.interface import Displaced, RuntimeFault, Seen, Unavailable
from events import subjects
from events.appending import append_event
from events.errors import code_of
from events.kinds import Event, NodeDrainRequested, NodeJoined, NodeLeft
from events.log.records import LogError, LogRefused, LogUnavailable, until_answered
from events.requests import Delayed
from events.spec.abilities import ABILITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agents.config import NodeConfig
    from agents.fitness import Found
    from agents.gpus import Source
    from agents.runtime.interface import Runtime
    from events.log.interface import Bus, EventLog
    from events.log.records import Record
    from events.parts import NodePart


_log = structlog.get_logger(__name__)
_KILL_S = 0.05
"""Seconds between looks at containers still being launched, when all are to be killed."""
_RESYNC_S = 5.0
_AGAIN_S = 1.0
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 1.0, 5.0
"""Bounds, in seconds, of the wait for a heartbeat's answer, which otherwise lasts until the next heartbeat."""
_LEAST_PAUSE_S = 0.05
_GPUS_S = 10.0
"""Seconds between looks at the GPUs; each launch on a GPU looks as well."""


def _health_program(config: NodeConfig, root: Path) -> HealthProgram | None:
    if config.health_program is None:
        return None
    variables = {"DORM_NODE": config.name, "DORM_DATA": str(root), "DORM_CHECKPOINTS": str(config.checkpoints)}
    return HealthProgram(
        config.health_program, every_s=config.health_every_s, timeout_s=config.health_timeout_s, variables=variables
    )


def _folders(root: Path, runtime: Runtime, config: NodeConfig) -> dict[str, Path]:
    """Return the folders that new containers need, by the names of `agents.fitness`."""
    engine = {"engine": runtime.engine_folder} if runtime.engine_folder is not None else {}
    return {"data": root, **engine, "checkpoints": config.checkpoints}


class Agent:
    """One node's agent.  `root` is its private folder; `clock` returns UTC ns; `port_taken` tests whether a process listens
    at an address and port of this machine; `since_boot` returns seconds of a clock that includes sleep; `machine` returns an
    id of the machine; `cards` lists the machine's GPUs (`agents.gpus`), None if they are as configured; `detected` says in
    words where the capacity comes from; `look_at` looks at its disks and processes (`agents.fitness`), None for not at
    all."""

    def __init__(
        self,
        log: EventLog,
        bus: Bus,
        cluster: str,
        config: NodeConfig,
        runtime: Runtime,
        *,
        root: Path,
        clock: Callable[[], int],
        build: str = "",
        port_taken: Callable[[str, int], bool] = listens,
        since_boot: Callable[[], float] = since_boot,
        machine: Callable[[], str] = machine_id,
        cards: Source | None = None,
        detected: str = "",
        look_at: Callable[[Mapping[str, Path], Callable[[str], None]], Found] | None = look_at_machine,
    ) -> None:
        self.config = config
        self.desired = Desired(config.name)
        self.joined = asyncio.Event()
        """Event that the agent has read the log to its end and announced itself."""
        self._log = log
        self._bus = bus
        self._cluster = cluster
        self._runtime = runtime
        self._clock = clock
        self._build = build
        self._ledger = Ledger(root / "ledger")
        self.gpus = Gpus(config.gpu_ids, self._ledger, config.name, cards)
        self._folder = CheckpointFolder(config.checkpoints)
        self._look = Looks(self._folder, config.name)
        volumes = Offers(config.volumes, config.name, () if runtime.mounts else config.pythons)
        self._health = _health_program(config, root)
        self._fitness = Fitness(
            config.name, lambda: _folders(root, runtime, config), self._silence_s, program=self._health, look=look_at
        )
        self._offers = NodesOffers(config.name, volumes, self._fitness, runtime, config.secrets)
        environments = Environments(root / "environments", mounted=runtime.mounts)
        self._outbox = Outbox(log, cluster, config.name)
        self.identity = Identity(root, machine)
        usage = Usage()
        self._reporter = Reporter(
            config, self.desired, runtime, self._ledger, self._outbox, clock, self.identity, self._look.shared,
            ProgressFeed(log.progress, cluster, config.name), usage,
        )  # fmt: skip
        self._since_boot = since_boot
        self._heartbeat = Heartbeat(
            bus, cluster, config.name, runtime, clock=clock, since_boot=since_boot, identity=self.identity, usage=usage
        )
        self._follower = Follower(log, cluster, config.name, self.desired, root, clock=clock)
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._seen: list[Seen] = []
        self._actions = Actions(
            config, self.desired, runtime, self.gpus, self._reporter, self._look, volumes, environments,
            port_taken=port_taken, may_launch=self._may_launch, unfit=lambda: self._announced_unfit,
            seen=lambda: self._seen, wake=self._wake, files=log.files,
        )  # fmt: skip
        self._status = StatusAnswerer(
            self.vitals, config, self.desired, root, build, runtime.name, clock, self.gpus, detected
        )
        self._repeats = Repeats()
        self._announced_unfit = ""
        """Reason why the node takes nothing new, as the log has it by now."""
        self._idle = False
        self._leaving = False
        self._cut_off = False
        self._announced_lease_s = self._announced_s = 0.0
        """The longest lease that the master may assume for this node, and the last announced one."""
        self._good_for_s = math.inf
        """The lease that the last heartbeat gave to running containers: the next one has to come well within it."""
        self._good_until = 0.0
        """End of that lease (`since_boot`), 0 before the first."""
        self._hurry = asyncio.Event()
        """Event that heartbeats must come more often."""
        self._answered_at = 0.0
        """Moment at which the engine last listed its containers (the loop's seconds)."""

    # --- life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled; containers keep running afterwards. The agent waits for a log that cannot be reached.
        Raises RuntimeFault or LogRefused before it has joined, LogClosed, LogDamaged whenever the log is not the one
        it had followed, and Displaced when its folder is not the one it had opened."""
        await asyncio.to_thread(self.gpus.open)
        if self.gpus.any:
            await self.gpus.look()
        await self._runtime.open()
        try:
            await asyncio.to_thread(self.identity.load, await self._runtime.root_id())
            await until_answered(self._log.end, f"looking up the log's end for node {self.config.name}")
            await until_answered(
                lambda: self._follower.recall(self._runtime), f"looking up what node {self.config.name} had read"
            )
            self._cut_off = not await self._held(unless=True)
            self._answered_at = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follower.follow(self._fold, self._take))
                tasks.create_task(self._outbox.run())
                if self._health is not None:
                    tasks.create_task(self._health.run(self._look.doubted.set))
                await self._join()
                tasks.create_task(self._hints())
                tasks.create_task(self._heartbeats())
                tasks.create_task(self._reporter.watch_progress())
                tasks.create_task(self._watch_folder())
                tasks.create_task(self._actions.remove_remains())
                tasks.create_task(self._watch_gpus())
                answering = answer_all(
                    self._bus, self._cluster, self._runtime, self.desired, self._status, self._folder, self._log,
                    self._outbox, self._clock, self._actions.inside,
                )  # fmt: skip
                tasks.create_task(answering)
                await self._converge(tasks)
        finally:
            self._follower.save()
            await self._runtime.close()

    def vitals(self) -> Vitals:
        states = [seen.state for seen in self._seen]
        return Vitals(
            node=self.config.name,
            joined=self.joined.is_set() and self._holds_name,
            seq=self.desired.seq,
            containers={state: states.count(state) for state in ("created", "running", "exited")},
            pending=self._outbox.waiting,
            silence_s=self._silence_s(),
            delays=[
                Delayed(*key, doing=trouble.doing, reason=trouble.reason, for_s=for_s, failing=trouble.failing)
                for key, trouble, for_s in self._actions.delays.now(asyncio.get_running_loop().time())
            ],
            lease_left_s=self._good_until - self._since_boot() if self._good_until else 0.0,
        )

    def _silence_s(self) -> float:
        """Return how long ago, in seconds, the engine last listed its containers."""
        return asyncio.get_running_loop().time() - self._answered_at if self._answered_at else 0.0

    def _warn(self, line: str, error: Exception) -> None:
        """Log a line that repeats while a fault lasts, at growing intervals."""
        if self._repeats.due(line, asyncio.get_running_loop().time(), code_of(error)):
            _log.warning(line, node=self.config.name, reason=str(error))

    def _is_well(self, line: str, now: str) -> None:
        """Log that the fault is over of which that line was logged."""
        if self._repeats.over(line):
            _log.warning(now, node=self.config.name)

    async def _fold(self, batch: list[Record]) -> None:
        pace = self._pace()
        for record in batch:
            self.desired.fold(record)
        self._follower.folded(batch)
        await self._note_news(pace)

    async def _take(self, part: NodePart) -> None:
        pace = self._pace()
        if self._follower.taken(part):
            self._announced_lease_s = max(self._announced_lease_s, part.lease_s, self.desired.lease_s)
            await self._note_news(pace)

    async def _note_news(self, pace: float) -> None:
        """Note that the desired state may have changed; `pace` is the pace of earlier heartbeats."""
        if self.joined.is_set() and not self._holds_name:
            self._cut_off = True
        if self._pace() < pace:
            self._hurry.set()
        self._wake.set()
        async with self._changed:
            self._changed.notify_all()

    # --- the lease ------------------------------------------------------------------------------------------------------

    async def _held(self, *, unless: bool = False) -> bool:
        """Return whether the lease lasts; `unless` if there never was one."""
        left = await self._runtime.lease_left()
        return unless if left is None else left > 0

    async def _extend(self, sent_at: float) -> bool:
        """Extend the lease from when a stored message had been sent; return False if that is too long ago.  Raises
        Unavailable."""
        lease_s = self.desired.lease_s
        if not self.desired.fresh:
            lease_s = min(lease_s, self._announced_s)
        seconds = lease_s - (self._since_boot() - sent_at)
        if seconds <= 0:
            return False
        await self._runtime.extend_lease(seconds)
        self._good_for_s, self._good_until = lease_s, sent_at + lease_s
        return True

    def _pace(self) -> float:
        """Return seconds from one heartbeat to the next: as the settings say, and soon enough for the lease held now, which
        may be older and shorter than the settings."""
        return min(self.desired.pace(self.config.report_interval_s), self._good_for_s / BEATS)

    async def _may_launch(self) -> bool:
        """Return whether this agent still launches containers.  Raises Unavailable while it does, but holds no lease."""
        if self._leaving or self._cut_off or not self.desired.fresh:
            return False
        if not await self._held():
            raise Unavailable("the node's lease is not held", code="node_lease.expired")
        if self._health is not None and self._health.verdict is None:
            raise Unavailable("the health program has not answered yet", code="node.health.unknown")
        return True

    async def _join(self) -> None:
        """Announce the node. Once the agent has read back its own announcement, it knows its desired state."""
        await self._fitness.join()
        while True:
            try:
                if self._cut_off:
                    await self._clear()
                if await self._announce():
                    break
                await self._wait_for_name()
            except Displaced:
                raise
            except (RuntimeFault, OSError) as error:
                self._warn("the node can't be used yet", error)
                await asyncio.sleep(_AGAIN_S)
        self._cut_off = False
        self._is_well("the node can't be used yet", "the node can be used")
        self.joined.set()
        _log.info(
            "joined",
            node=self.config.name,
            runtime=self._runtime.name,
            capacity=self.gpus.capacity(self.config.capacity),
        )

    @property
    def _holds_name(self) -> bool:
        return self.desired.holder == self.identity.value and self.desired.enrolled

    async def _wait_for_name(self) -> None:
        """Wait while another machine holds the name.  Containers here, if any, are no longer this node's: they end
        with their own lease, and certainly before this node joins."""
        logged = ""
        async with self._changed:
            while not self.desired.may_hold(self.identity.value):
                self._cut_off = True
                if (why := refusal(self.desired)) != logged:
                    _log.error(why)
                    logged = why
                await self._changed.wait()

    async def _clear(self) -> None:
        """Make sure that nothing runs here: this node's desired state is from before its lease expired.  Raises Unavailable
        if that is not certain, and if no lease could be written: a node that announced itself then would get apps again, and
        lose them at once."""
        await self._runtime.extend_lease(0.0)
        await self.kill_all()
        left = [seen.key for seen in await self._runtime.list() if seen.state == "running"]
        self._answered_at = asyncio.get_running_loop().time()
        if left:
            raise Unavailable(f"{left[0]} still runs, though the node's lease is over", code="container.unkillable")

    async def _announce(self) -> bool:
        """Announce the node.  Return False if another machine holds the name, or if it took so long that the lease expired
        again.  Raises Unavailable."""
        await self._look.find()
        left_s, knows_lease = max(0.0, await self._runtime.lease_left() or 0.0), self.desired.knows_lease
        # The lease in a part may be out of date, so the agent reports its lease to the master.
        self._announced_s = max(left_s, self.desired.lease_s) if knows_lease else left_s
        sent_at = self._since_boot()
        name, config = self.config.name, self.config
        event = NodeJoined(
            # Not derived from a clock, which may be set back: the same id twice would be stored once.
            id=f"{name}.joined.{secrets.token_hex(8)}", at=self._clock(), by=name, node=name, address=config.address,
            capacity=self.gpus.announce(config.capacity), ports=config.ports, labels=config.labels,
            runtime=config.announced(self._runtime.name), build=self._build, lease_s=self._announced_s,
            identity=self.identity.value, checkpoints=self._folder.id, process=self.identity.process, prepares=True,
            abilities=[*ABILITIES], offers=await self._offers.announce(),
        )  # fmt: skip
        seq = await self._append(event)
        self._announced_unfit = (
            "; ".join(trouble.text for trouble in event.offers.unfit) if event.offers is not None else ""
        )
        async with self._changed:
            await self._changed.wait_for(lambda: self.desired.seq >= seq)
            await self._changed.wait_for(lambda: knows_lease or self.desired.fresh)
        if (refused := self.desired.refused) is not None:
            raise LogRefused(f"the cluster refuses node {self.config.name}: {refused.reason}", code=refused.code)
        self._announced_lease_s = max(self.desired.lease_s, event.lease_s)
        return self._holds_name and await self._extend(sent_at)

    async def _watch_folder(self) -> None:
        """Announce the node again if another folder of checkpoints is mounted than the one it announced, or none, or if
        its offers have changed."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESYNC_S):
                    await self._look.doubted.wait()
            self._look.doubted.clear()
            try:
                try:
                    same = await self._look(self._folder.is_the_same)
                except Unavailable as error:
                    same = True  # Nobody knows; that it does not answer is announced.
                    self._warn("the folder can't be looked at", error)
                # An expired lease, for example after the whole machine was paused, is never just extended.
                news = not same or self.gpus.changed or await self._offers.changed()
                if self._leaving or not news or not await self._look_at_lease():
                    continue
                if not same:
                    _log.error("another folder of checkpoints is mounted, or none", folder=str(self._folder.path))
                await self._announce()
            except (Unavailable, OSError) as error:
                self._warn("the node can't be announced again", error)
            await asyncio.sleep(_AGAIN_S)

    async def _watch_gpus(self) -> None:
        """Look at the GPUs now and then.  The loop of `_converge` stops what has lost its own."""
        while self.gpus.any:
            await asyncio.sleep(_GPUS_S)
            try:
                await self.gpus.look()
            except OSError as error:
                _log.warning("the GPUs can't be looked at", node=self.config.name, reason=str(error))
                continue
            if self.gpus.lost:
                self._wake.set()
            if self.gpus.changed:
                self._look.doubted.set()

    async def _announce_lease(self) -> None:
        """Announce a lowered lease once it is in force here, so that the master need not wait for the longer one: the master
        can't know when this node has read of the change."""
        if self.desired.lease_s >= self._announced_lease_s or self._leaving:
            return
        left = await self._runtime.lease_left()
        if (
            left is not None and left <= self.desired.lease_s
        ):  # Otherwise it was lowered just now: the next heartbeat shortens it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MOST_PATIENCE_S):
                    await self._announce()

    async def _heartbeats(self) -> None:
        """Send heartbeats at a steady pace, and extend the lease for each one that was stored."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                try:
                    await self._beat()
                finally:
                    await self._look_at_lease()
            except (LogError, Unavailable, OSError) as error:
                self._warn("no heartbeat was stored", error)
            else:
                self._is_well("no heartbeat was stored", "heartbeats are stored again")
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(_LEAST_PAUSE_S, self._pace() - (loop.time() - begun))):
                    await self._hurry.wait()

    async def _beat(self) -> None:
        silent = asyncio.get_running_loop().time() - self._answered_at
        if not await self._look_at_lease():
            return  # The master must see that this node can't be used, and another machine may hold its name by now.
        if silent > self.desired.lease_s:
            raise Unavailable(
                f"the engine has not answered for {silent:.0f} s, so the agent does not know what runs here",
                code="runtime.silent",
            )
        # The next heartbeat must not wait long for a lost answer, or a short outage would cost a short lease.
        patience = min(max(self._pace(), _LEAST_PATIENCE_S), _MOST_PATIENCE_S)
        sent_at = await self._heartbeat.send(self._seen, patience)
        if await self._look_at_lease() and await self._extend(sent_at):
            await self._announce_lease()

    async def _look_at_lease(self) -> bool:
        """Return whether the lease is held.  Once it has expired, the runtime kills all containers, and the node must
        join again."""
        if await self._held():
            return not self._cut_off
        if not self._cut_off:
            self._cut_off = True
            _log.error("cut off for longer than the lease: all containers are killed", node=self.config.name)
            self._wake.set()
        return False

    async def _append(self, event: Event) -> int:
        subject = subjects.fact(self._cluster, type(event).__name__, self.config.name)
        while True:
            try:
                return (await append_event(self._log, subject, event)).seq
            except (LogUnavailable, LogRefused) as error:
                if isinstance(error, LogRefused) and not self.joined.is_set():
                    raise
                self._warn("waiting for the log", error)
                await asyncio.sleep(0.5)

    # --- ends -----------------------------------------------------------------------------------------------------------

    async def leave(self, *, timeout: float) -> bool:
        """Ask the master to empty this node, wait until it is empty, and publish NodeLeft.  Return False if that took
        too long: running containers then keep running.  Call it while `run` is running."""
        if not self.desired.may_hold(self.identity.value):
            return True  # This agent has nothing to empty, and another machine holds the name.
        now = self._clock()
        self._leaving = True
        request = NodeDrainRequested(
            id=f"{self.config.name}.leaving.{now}",
            at=now,
            by=self.config.name,
            node=self.config.name,
            until_rejoin=True,
            reason="the agent is stopping",
            identity=self.identity.value,
        )
        try:
            async with asyncio.timeout(timeout):
                await self._append(request)
                async with self._changed:
                    await self._changed.wait_for(lambda: self._idle and not self.desired.wanted())
                await self._outbox.flush()
                left = NodeLeft(
                    id=f"{self.config.name}.left.{now}", at=now, by=self.config.name, node=self.config.name,
                    identity=self.identity.value, process=self.identity.process,
                )  # fmt: skip
                await self._append(left)
        except TimeoutError:
            return False
        return True

    async def kill_all(self) -> None:
        """Send SIGKILL to every container of this node, for an operator who can't wait or a node that is cut off.  The agent
        ends them, not the apps, so no retries are used up.  Raises RuntimeFault.

        A container that is being launched is not listed as running yet, and would keep running; the agent therefore
        waits for it and kills it too.  Nothing else is launched from here on, unless a node that was cut off joins
        again."""
        if not self._cut_off:
            self._leaving = True
        while True:
            launching = bool(self._actions.launching)
            await self._kill_running()
            if not launching:
                return
            await asyncio.sleep(_KILL_S)

    async def _kill_running(self) -> None:
        running = [seen.key for seen in await self._runtime.list() if seen.state == "running"]
        for key in running:
            await self._reporter.asking(key)
        outcomes = await asyncio.gather(*(self._runtime.stop(key, 0.0) for key in running), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _hints(self) -> None:
        async for _ in self._runtime.hints():
            self._wake.set()

    # --- converging -----------------------------------------------------------------------------------------------------

    async def _converge(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            if self._cut_off:
                await self._join()
            # While an action on a container is under way, the list may be stale: a container that has just been started
            # would look lost.  The end of each action wakes this loop again.
            unsure = set(self._actions.busy)
            try:
                self._seen = await self._runtime.list()
            except (Unavailable, OSError) as error:
                self._warn("the engine does not answer", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            self._is_well("the engine does not answer", "the engine answers")
            self._answered_at = asyncio.get_running_loop().time()
            self._reporter.look(self._seen)
            # While it listed, the node may have been cut off, or another machine may have been found to hold its name.
            now, fresh = self._follower.log_time(), self.desired.fresh and not self._cut_off
            acted = self._actions.announced, self._actions.prepared, self.gpus.lost
            actions = r.reconcile(self.desired, self._seen, now, *acted) if fresh else []
            for action in actions:
                if action.key not in unsure and not (self._leaving and isinstance(action, r.Launch | r.Prepare)):
                    self._actions.start(action, tasks)
            self._actions.kill_what_stops(tasks)
            async with self._changed:
                self._idle = (
                    fresh
                    and not any(not isinstance(action, r.Prepare) for action in actions)
                    and not any(seen.state == "running" for seen in self._seen)
                )
                self._changed.notify_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESYNC_S):
                    await self._wake.wait()
