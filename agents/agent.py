"""The agent: drives a runtime towards what the log says this node should run, and reports what it sees.

Level-triggered: whatever woke it (a record, a hint of the engine, the clock), it lists, compares and acts, so a crash, a
restart or a repeated message ends in the same state.  Each container has at most one action under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import socket
from typing import TYPE_CHECKING

import msgspec
import structlog

from agents import reconcile as r
from agents.contract import container_spec
from agents.desired import Desired
from agents.ledger import Ledger
from agents.logs import LogAnswerer
from agents.outbox import Outbox
from agents.progress import ProgressFile
from agents.runtime import PROGRESS_FILE, Conflict, Key, Refused, RuntimeFault, Seen, Unavailable, key_name
from events import subjects
from events.codec import encode
from events.kinds import (
    ContainerExited,
    ContainerStarted,
    ContainerUse,
    Event,
    ExitReason,
    NodeDrainRequested,
    NodeJoined,
    NodeLeft,
    NodeReported,
    Placed,
)
from events.log import LogError, LogUnavailable
from events.quantities import GPU

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from agents.config import NodeConfig
    from agents.runtime import Runtime
    from events.log import Bus, EventLog


PORT_TAKEN = errno.EADDRINUSE
"""98, the exit code by which an app says that something else listens on a port it was given."""
_log = structlog.get_logger(__name__)
_KILL_S = 0.05
"""Between looks at what is still being launched, when all is to be killed."""
_RESYNC_S = 5.0
_PROGRESS_POLL_S = 0.2


def listens(address: str, port: int) -> bool:
    """Whether something on this machine listens there."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            # An address that is not this host's (behind NAT, say) can't be tried.
            return error.errno == errno.EADDRINUSE
    return False


class Agent:
    """One node's agent.  `root` is a folder of its own; `clock` gives UTC ns; `port_taken` says whether something listens
    at an address and port of this machine."""

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
    ) -> None:
        self.config = config
        self.desired = Desired(config.name)
        self.joined = asyncio.Event()
        """Set once it has read the log to its end and announced itself."""
        self._log = log
        self._bus = bus
        self._cluster = cluster
        self._runtime = runtime
        self._clock = clock
        self._build = build
        self._port_taken = port_taken
        self._ledger = Ledger(root / "ledger")
        self._outbox = Outbox(log, cluster, config.name)
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._busy: set[Key] = set()
        self._launching: set[Key] = set()
        self._progress: dict[Key, ProgressFile] = {}
        self._seen: list[Seen] = []
        self._idle = False
        self._leaving = False
        self._cut_off = False
        self._heard_at = 0.0

    # --- life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled; containers run on afterwards.  Raises RuntimeFault or LogError only before it has joined."""
        await asyncio.to_thread(self._ledger.open)
        await self._runtime.open()
        try:
            await self._log.end()
            self._heard_at = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow())
                tasks.create_task(self._outbox.run())
                await self._join()
                tasks.create_task(self._hints())
                tasks.create_task(self._heartbeat())
                tasks.create_task(self._watch_progress())
                answerer = LogAnswerer(self._runtime, self.desired)
                tasks.create_task(self._bus.answer(subjects.ask(self._cluster, self.config.name, "logs"), answerer))
                await self._converge(tasks)
        finally:
            await self._runtime.close()

    async def _follow(self) -> None:
        pattern = [
            subjects.rounds(self._cluster),
            subjects.facts_by(self._cluster, self.config.name),
            subjects.fact_pattern(self._cluster, "PolicyChanged"),
        ]
        async for batch in self._log.read(subjects=pattern, follow=True):
            for record in batch:
                self.desired.fold(record)
            self._wake.set()
            async with self._changed:
                self._changed.notify_all()

    async def _join(self) -> None:
        """Announce the node; what it should run is known once its own announcement has been read back."""
        event = NodeJoined(
            id=f"{self.config.name}.joined.{self._clock()}",
            at=self._clock(),
            by=self.config.name,
            node=self.config.name,
            address=self.config.address,
            capacity=self.config.capacity,
            ports=self.config.ports,
            labels=self.config.labels,
            runtime=self._runtime.name,
            build=self._build,
        )
        seq = await self._append(event)
        async with self._changed:
            await self._changed.wait_for(lambda: self.desired.seq >= seq)
        self.joined.set()
        _log.info("joined", node=self.config.name, runtime=self._runtime.name, capacity=self.config.capacity)

    async def _append(self, event: Event) -> int:
        subject = subjects.fact(self._cluster, type(event).__name__, self.config.name)
        while True:
            try:
                return (await self._log.append(subject, encode(event), msg_id=event.id)).seq
            except LogUnavailable as error:
                _log.warning("waiting for the log", node=self.config.name, reason=str(error))
                await asyncio.sleep(0.5)

    async def leave(self, *, timeout: float) -> bool:
        """Ask the master to empty this node, wait until it is, and say goodbye.  False where that took too long: what
        runs then runs on.  Call it while `run` is running."""
        now = self._clock()
        self._leaving = True
        await self._append(
            NodeDrainRequested(
                id=f"{self.config.name}.leaving.{now}",
                at=now,
                by=self.config.name,
                node=self.config.name,
                until_rejoin=True,
                reason="the agent is stopping",
            )
        )
        try:
            async with asyncio.timeout(timeout):
                async with self._changed:
                    await self._changed.wait_for(lambda: self._idle and not self.desired.wanted())
                await self._outbox.flush()
                await self._append(
                    NodeLeft(id=f"{self.config.name}.left.{now}", at=now, by=self.config.name, node=self.config.name)
                )
        except TimeoutError:
            return False
        return True

    async def kill_all(self) -> None:
        """SIGKILL to every container of this node, for a person who can't wait or a node that is cut off.  It is the
        agent's doing and not the apps' failure, so none of their retries is used up.

        What is being launched meanwhile is not listed as running yet, and would run on; so it is waited for and killed, too.
        Nothing else is launched from here on, unless a node that was cut off joins again."""
        if not self._cut_off:
            self._leaving = True
        while True:
            launching = bool(self._launching)
            await self._kill_running()
            if not launching:
                return
            await asyncio.sleep(_KILL_S)

    async def _kill_running(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for seen in await self._runtime.list():
                if seen.state == "running":
                    await asyncio.to_thread(self._ledger.note_asked, seen.key)
                    tasks.create_task(self._runtime.stop(seen.key, 0.0))

    async def _hints(self) -> None:
        async for _ in self._runtime.hints():
            self._wake.set()

    # --- converging -----------------------------------------------------------------------------------------------------

    async def _converge(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            if self._cut_off:
                # What this node believes it should run is from before its lease had ended: nothing is launched by that.
                await self._join()
                self._heard_at = asyncio.get_running_loop().time()
                self._cut_off = False
            # Of what is acted on while it is listed, the list may tell an older story: a container that has just been
            # started would look lost.  The end of each action wakes this again.
            unsure = set(self._busy)
            try:
                self._seen = await self._runtime.list()
            except Unavailable as error:
                _log.warning("the engine does not answer", node=self.config.name, reason=str(error))
                await asyncio.sleep(1.0)
                continue
            actions = r.reconcile(self.desired, self._seen, self._clock())
            for action in actions:
                if action.key not in unsure:
                    self._busy.add(action.key)
                    tasks.create_task(self._do(action))
            async with self._changed:
                self._idle = not actions and not any(seen.state == "running" for seen in self._seen)
                self._changed.notify_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESYNC_S):
                    await self._wake.wait()

    async def _do(self, action: r.Action) -> None:
        pause = 0.0
        try:
            await self._act(action)
        except Unavailable as error:
            _log.warning("the engine is not ready, trying again", node=self.config.name, reason=str(error))
            pause = 1.0
        except (RuntimeFault, OSError) as error:
            _log.error("an action failed", node=self.config.name, action=type(action).__name__, reason=str(error))
            pause = 1.0
        finally:
            if pause:
                await asyncio.sleep(pause)
            self._busy.discard(action.key)
            self._wake.set()

    async def _act(self, action: r.Action) -> None:
        match action:
            case r.Launch(key):
                self._launching.add(key)
                try:
                    await self._launch(key)
                finally:
                    self._launching.discard(key)
            case r.Halt(key):
                await self._halt(key)
            case r.ReportStarted(seen):
                await self._report_started(seen)
            case r.ReportExited(key, seen):
                await self._report_exited(key, seen)
            case r.Discard(key):
                await self._runtime.remove(key)
                await asyncio.to_thread(self._ledger.forget, key)
                self._progress.pop(key, None)
                if not any(seen.key.app == key.app and seen.key != key for seen in self._seen):
                    await self._forget_ended(key.app)

    async def _forget_ended(self, app: str) -> None:
        """Of an app that ended long ago nothing is left here: its checkpoints go too.  Every agent that ran a part of it
        does the same on the shared folder, so it may be gone already."""
        known = self.desired.apps.get(app)
        if known is not None and known.ended_at:
            await asyncio.to_thread(shutil.rmtree, self.config.checkpoints / app, ignore_errors=True)
            self.desired.forget(app)

    async def _launch(self, key: Key) -> None:
        app = self.desired.wanted().get(key)
        if app is None or self._leaving or self._cut_off:
            return
        ports = _ports_of(app.placement, key.slot, app.master_port)
        taken = next((port for address, port in ports if self._port_taken(address, port)), 0)
        if taken:
            await self._exited(key, reason="port", message=f"port {taken} is in use on {self.config.address}")
            return
        wanted_gpus = app.spec.resources().get(GPU, 0)
        devices = await asyncio.to_thread(self._ledger.take_devices, key, wanted_gpus, self.config.gpu_ids)
        if devices is None:
            await self._exited(key, reason="device", message=f"fewer than {wanted_gpus} GPUs are free here")
            return
        checkpoint_dir = self.config.checkpoints / key.app
        await asyncio.to_thread(checkpoint_dir.mkdir, parents=True, exist_ok=True)
        spec = container_spec(
            key.app,
            app,
            key.slot,
            checkpoint_dir=str(checkpoint_dir),
            checkpoint_mount=self._runtime.checkpoint_mount,
            devices=devices,
        )
        try:
            seen = await self._runtime.ensure(spec)
        except Refused as error:
            await self._exited(key, reason=error.cause, message=str(error))
        except Conflict as error:
            await self._exited(key, reason="unknown", message=str(error))
        else:
            _log.info("started", app=key.app, generation=key.generation, slot=key.slot, node=self.config.name)
            if seen.state == "running" and key not in self.desired.started:
                await self._report_started(seen)

    async def _halt(self, key: Key) -> None:
        """Checkpoint command, if the app has one, then SIGTERM and its grace time."""
        app = self.desired.apps.get(key.app)
        spec = app.spec if app else None
        await asyncio.to_thread(self._ledger.note_asked, key)
        if spec is not None and spec.checkpoint and app is not None and not app.ended_at:
            code = await self._runtime.run(key, tuple(spec.checkpoint), spec.grace_s)
            if code:
                _log.warning("the checkpoint command failed", app=key.app, slot=key.slot, exit_code=code)
        await self._runtime.stop(key, spec.grace_s if spec else 10.0)

    async def _report_started(self, seen: Seen) -> None:
        self.desired.started.add(seen.key)
        app, generation, slot = seen.key
        await self._outbox.put(
            ContainerStarted(
                id=f"{self.config.name}.{key_name(seen.key)}.started",
                at=self._clock(),
                by=self.config.name,
                app=app,
                generation=generation,
                slot=slot,
                node=self.config.name,
                started_at=seen.started_at,
            )
        )

    async def _report_exited(self, key: Key, seen: Seen | None) -> None:
        if seen is None:
            await self._exited(key, reason="lost", message="the container is gone; somebody or something removed it")
            return
        reason: ExitReason = "out_of_memory" if seen.out_of_memory else "exit"
        if seen.exit_code is None and not seen.out_of_memory:
            reason = "command" if seen.error else "unknown"
        if seen.exit_code == PORT_TAKEN:
            reason = "port"
        await self._read_progress(key, final=True)
        await self._exited(key, seen=seen, reason=reason, message=seen.error)

    async def _exited(self, key: Key, *, reason: ExitReason, message: str = "", seen: Seen | None = None) -> None:
        self.desired.exited.add(key)
        asked = await asyncio.to_thread(self._ledger.asked, key)
        await asyncio.to_thread(self._ledger.free_devices, key)
        app, generation, slot = key
        _log.info("exited", app=app, generation=generation, slot=slot, reason=reason, asked=asked, message=message)
        await self._outbox.put(
            ContainerExited(
                id=f"{self.config.name}.{key_name(key)}.exited",
                at=self._clock(),
                by=self.config.name,
                app=app,
                generation=generation,
                slot=slot,
                node=self.config.name,
                exit_code=seen.exit_code if seen else None,
                asked=asked,
                reason=reason,
                message=message[:500],
                started_at=seen.started_at if seen else 0,
                exited_at=seen.exited_at if seen else self._clock(),
            )
        )

    # --- progress and heartbeats ----------------------------------------------------------------------------------------

    async def _watch_progress(self) -> None:
        while True:
            for seen in self._seen:
                if seen.state == "running":
                    await self._read_progress(seen.key, final=False)
            await asyncio.sleep(_PROGRESS_POLL_S)

    async def _read_progress(self, key: Key, *, final: bool) -> None:
        file = self._progress.get(key)
        if file is None:
            path = self._runtime.run_dir(key) / PROGRESS_FILE
            file = self._progress[key] = ProgressFile(key, path, self.config.progress_interval_s)
        now = asyncio.get_running_loop().time()
        for fact in await asyncio.to_thread(file.read, now, final=final):
            at = self._clock()
            event = msgspec.structs.replace(
                fact,
                id=f"{self.config.name}.{key_name(key)}.{type(fact).__name__}.{fact.step}.{at}",
                at=at,
                by=self.config.name,
            )
            await self._outbox.put(event)

    async def _heartbeat(self) -> None:
        """A report at a steady pace; where none was stored for the length of the lease, this node is cut off, the
        master may give its apps to others, and so everything here is killed."""
        loop = asyncio.get_running_loop()
        while True:
            sent_at = loop.time()
            try:
                report = await self._report()
                await self._bus.publish_report(subjects.report(self._cluster, self.config.name), encode(report))
                self._heard_at = sent_at
            except (LogError, Unavailable) as error:
                _log.warning("a heartbeat was not stored", node=self.config.name, reason=str(error))
            if loop.time() - self._heard_at > self.desired.lease_s:
                _log.error("cut off from the log for longer than the lease: stopping all containers")
                self._cut_off = True
                self._wake.set()
                with contextlib.suppress(RuntimeFault):
                    await self.kill_all()
            await asyncio.sleep(max(0.05, self.config.report_interval_s - (loop.time() - sent_at)))

    async def _report(self) -> NodeReported:
        uses = [use async for use in self._uses()]
        at = self._clock()
        return NodeReported(
            id=f"{self.config.name}.report.{at}",
            at=at,
            by=self.config.name,
            node=self.config.name,
            used={"memory": sum(use.memory for use in uses)},
            containers=uses,
        )

    async def _uses(self) -> AsyncIterator[ContainerUse]:
        for seen in self._seen:
            use = await self._runtime.use(seen.key) if seen.state == "running" else None
            if use is not None:
                app, generation, slot = seen.key
                yield ContainerUse(app=app, generation=generation, slot=slot, cpu_s=use.cpu_s, memory=use.memory)


def _ports_of(placement: list[Placed], slot: int, master_port: int) -> list[tuple[str, int]]:
    """Where this slot is to listen; the first one also has the rendezvous port."""
    first = min(placed.slot for placed in placement)
    here = next(placed for placed in placement if placed.slot == slot)
    ports = (here.port, master_port if slot == first else 0)
    return [(here.address, port) for port in ports if port]
