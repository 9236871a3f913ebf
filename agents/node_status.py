"""How a node and its agent are: the periodic heartbeat, what containers have used, and the state of the process.

A heartbeat has the resource use of its containers if the engine reports it in time.  What a container has used until
now comes from the looks that heartbeats take at it, and is reported once, at its end.  An engine forgets a container's
figures when the container ends, so the last look before its end counts.

Vitals are the process's own figures, and `status` answers questions about facts of the process and its machine, which
no event states."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from agents.runtime import cgroups
from agents.runtime.interface import Key, Unavailable
from events import subjects
from events.codec import encode
from events.kinds import ContainerUse, ContainerUsed, NodeReported
from events.limits import LARGEST_FACTS
from events.log.records import LogError
from events.logger import Logger
from events.quantities import SECOND
from events.requests import AgentStatus, Delayed, Disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from agents.config import NodeConfig
    from agents.desired import Desired
    from agents.gpus import Gpus
    from agents.machine_identity import Identity
    from agents.runtime.interface import Runtime, Seen
    from events.log.interface import Bus

# --- what containers have used ----------------------------------------------------------------------------------------


class _Looks:
    """The looks at one container."""

    def __init__(self, started_at: int, first_at: int) -> None:
        self.started_at = started_at
        self.at = self.first_at = first_at
        self.cpu_s = 0.0
        self.byte_ns = 0
        """Resident bytes, each look's from the one before it on."""
        self.memory = 0


class Usage:
    """The use of the containers of one node.  A restart of the agent loses only the mean of their memory before it."""

    def __init__(self) -> None:
        self._looks: dict[Key, _Looks] = {}

    def note(self, seen: Sequence[Seen], uses: Sequence[ContainerUse], at: int, clock: int) -> None:
        """Take a look at the running containers, and forget those that are gone.  Times are measured by an unsettable clock
        (`at`, ns).  The wall clock (`clock`, UTC ns) only says, at the first look, how long a container has run by then."""
        listed: Mapping[Key, Seen] = {container.key: container for container in seen}
        for use in uses:
            key = Key(use.app, use.generation, use.slot)
            if key not in listed:
                continue
            looks = self._looks.get(key)
            if looks is None:
                ran = max(0, clock - (listed[key].started_at or clock))
                looks = self._looks[key] = _Looks(at - ran, at)
            looks.byte_ns += use.memory * max(0, at - looks.at)
            looks.at, looks.cpu_s, looks.memory = max(looks.at, at), max(looks.cpu_s, use.cpu_s), use.memory
        for key in [key for key in self._looks if key not in listed]:
            del self._looks[key]

    def of(self, key: Key) -> ContainerUsed | None:
        """Return a container's usage when it was last looked at; None if it never was."""
        looks = self._looks.get(key)
        if looks is None:
            return None
        watched = looks.at - looks.first_at
        return ContainerUsed(
            cpu_s=round(looks.cpu_s, 3),
            memory=looks.byte_ns // watched if watched else looks.memory,
            over_s=round(max(0, looks.at - looks.started_at) / SECOND, 3),
        )


# --- the heartbeat ----------------------------------------------------------------------------------------------------

FIGURES_S = 1.0
"""Seconds that reading usage may take.  A slow or hanging engine must not make its node silent."""
_AT_ONCE = 16
"""Containers whose figures are read at a time."""


class Heartbeat:
    """The heartbeats of one node; `clock` returns UTC ns, `since_boot` seconds of an unsettable clock that includes sleep."""

    def __init__(
        self,
        bus: Bus,
        cluster: str,
        node: str,
        runtime: Runtime,
        *,
        clock: Callable[[], int],
        since_boot: Callable[[], float],
        identity: Identity,
        usage: Usage,
    ) -> None:
        self._bus = bus
        self._subject = subjects.report(cluster, node)
        self._node = node
        self._runtime = runtime
        self._clock = clock
        self._since_boot = since_boot
        self._identity = identity
        self._usage = usage

    async def send(self, seen: Sequence[Seen], timeout: float) -> float:
        """Store a heartbeat within `timeout` seconds.  Return the time (`since_boot`) just before it was sent, from which the
        lease counts.  `seen` are the node's containers.  Raises LogUnavailable, LogRefused."""
        uses, complete = await self._uses(seen)
        at = self._clock()
        self._usage.note(seen, uses, int(self._since_boot() * SECOND), at)
        report = NodeReported(
            id=f"{self._node}.report.{at}",
            at=at,
            by=self._node,
            node=self._node,
            used={"memory": sum(use.memory for use in uses)} if complete else {},
            containers=uses,
            identity=self._identity.value,
        )
        body = encode(report)
        if len(body) > LARGEST_FACTS:  # A node must not be silent because its report is large.
            body = encode(msgspec.structs.replace(report, containers=[]))
        sent_at = self._since_boot()
        await self._bus.publish_report(self._subject, body, timeout=timeout)
        return sent_at

    async def _uses(self, seen: Sequence[Seen]) -> tuple[list[ContainerUse], bool]:
        """Return the use of each running container whose figures came in time, and whether none is missing: only then does the
        heartbeat name the node's sum (`used`), so a partial list does not look complete."""
        running = [container.key for container in seen if container.state == "running"]
        uses: dict[Key, ContainerUse] = {}
        missing = False
        room = asyncio.Semaphore(_AT_ONCE)

        async def ask(key: Key) -> None:
            nonlocal missing
            try:
                async with room:
                    use = await self._runtime.use(key)
            except (OSError, Unavailable):
                missing = True
            else:
                if use is not None:
                    app, generation, slot = key
                    uses[key] = ContainerUse(
                        app=app, generation=generation, slot=slot, cpu_s=use.cpu_s, memory=use.memory
                    )

        try:
            async with asyncio.timeout(FIGURES_S), asyncio.TaskGroup() as asking:
                for key in running:
                    asking.create_task(ask(key))
        except TimeoutError:
            missing = True
        return [uses[key] for key in running if key in uses], not missing


# --- vitals -----------------------------------------------------------------------------------------------------------


class Vitals(msgspec.Struct, frozen=True):
    """One look at an agent."""

    node: str
    joined: bool
    """Whether it has announced its node, and holds the node's name."""
    seq: int
    """The last record that it has folded."""
    containers: dict[str, int]
    """Number of containers by state, as the runtime listed them last."""
    pending: int
    """Facts that the log does not have yet."""
    silence_s: float
    """Seconds since the runtime last listed its containers."""
    lease_left_s: float = 0.0
    """Seconds that its containers may run without a further stored heartbeat; 0 or less: they are killed."""
    delays: list[Delayed] = []
    """Actions for containers that it tries again and again."""


# --- status -----------------------------------------------------------------------------------------------------------

_DISKS_S = 2.0
"""Seconds within which file systems have to answer: a file server that hangs must not silence the agent."""
_MOST_DELAYS = 16
_log = Logger(__name__)


class StatusAnswerer:
    """The answerer of one node.  `vitals` looks at the agent, `root` is its private folder, `clock` returns UTC ns, and
    `detected` says in words where the capacity comes from."""

    def __init__(
        self,
        vitals: Callable[[], Vitals],
        config: NodeConfig,
        desired: Desired,
        root: Path,
        build: str,
        runtime: str,
        clock: Callable[[], int],
        gpus: Gpus,
        detected: str = "",
    ) -> None:
        self._vitals = vitals
        self._folders = [root, config.checkpoints]
        self._desired = desired
        self._build = build
        self._runtime = runtime
        self._clock = clock
        self._gpus = gpus
        self._detected = detected

    async def __call__(self, question: bytes) -> AsyncIterator[bytes]:
        del question
        disks = await disks_of(self._folders)
        left = await asyncio.to_thread(cgroups.left, os.getpid())
        now = self._vitals()
        status = AgentStatus(
            node=now.node,
            build=self._build,
            at=self._clock(),
            joined=now.joined,
            seq=now.seq,
            lease_left_s=now.lease_left_s,
            lease_s=self._desired.lease_s,
            silence_s=now.silence_s,
            pending=now.pending,
            runtime=self._runtime,
            disks=disks,
            delays=now.delays[:_MOST_DELAYS],
            processes_free=max(0, left.free) if left is not None else 0,
            processes=left.most if left is not None else 0,
            processes_of=left.of if left is not None else "",
            gpus=self._gpus.troubles,
            detected=self._detected,
        )
        yield msgspec.json.encode(status)


async def answer_if_allowed(bus: Bus, subject: str, answerer: StatusAnswerer) -> None:
    """Serve questions until cancelled.  A server that forbids it, whose permissions are older, or a lost connection, ends
    nothing but this."""
    try:
        await bus.answer_all(subject, answerer)
    except LogError as error:
        _log.warning("questions how this agent is are not answered", reason=str(error))


async def disks_of(folders: Sequence[Path]) -> list[Disk]:
    """Return the file systems of these folders; without those that do not answer in time."""
    return [disk for disk in await asyncio.gather(*map(_disk, folders)) if disk is not None]


async def _disk(folder: Path) -> Disk | None:
    try:
        async with asyncio.timeout(_DISKS_S):
            return await asyncio.to_thread(disk_of, folder)
    except (OSError, TimeoutError):
        return None


def disk_of(folder: Path) -> Disk:
    """Look at the file system of a folder.  Raises OSError."""
    figures = os.statvfs(folder)
    return Disk(
        str(folder),
        free=figures.f_bavail * figures.f_frsize,
        total=figures.f_blocks * figures.f_frsize,
        inodes_free=figures.f_favail,
        inodes=figures.f_files,
        read_only=bool(figures.f_flag & os.ST_RDONLY),
    )
