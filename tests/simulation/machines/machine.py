"""The true state of engines: which containers run on a machine, independent of what others believe.

A machine outlives its agent: containers, their files, the ports they listen on, and the guard that kills all of them when the
lease is over.  This is nature, part of no process: faults can hit it, but it is never killed with an agent.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Protocol

from agents.fitness import Found, FoundFolder, Room
from agents.outputs.folders import MARKER
from agents.runtime.interface import (
    PROGRESS_FILE,
    Conflict,
    ContainerSpec,
    Displaced,
    Key,
    Refused,
    Seen,
    Unavailable,
    key_name,
    spec_hash,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from agents.runtime.interface import State
    from tests.simulation.machines.apps import Program
    from tests.simulation.world.process import Host
    from tests.simulation.world.world import World

_UNSYNCED_S = 5.0
"""After a loss of power, the disk may lack everything written within this time before it."""
_AGAIN_S = 1.0
_DISK = 2**40


class Witness(Protocol):
    """Learns of everything that containers do, at the moment they do it."""

    def started(self, container: Container) -> None: ...
    def ended(self, container: Container) -> None: ...
    def fails(self, container: Container) -> None:
        """It has lost its connections, because it is about to end badly."""
        ...

    def asked(self, container: Container) -> None:
        """The agent asks it to stop."""
        ...

    def removed(self, container: Container) -> None:
        """The agent deletes it and everything known about it."""
        ...

    def could_not_start(self, key: Key) -> None:
        """It was refused, or its port was taken."""
        ...

    def saved(self, key: Key, step: int) -> None: ...
    def folder_gone(self, key: Key) -> None:
        """Another folder of checkpoints than before is mounted where this container runs, or ran."""
        ...

    def lost_words(self, key: Key) -> None:
        """The container's output is gone, perhaps unread."""
        ...

    def extended(self, machine: Machine, seconds: float) -> None: ...

    def lease_over(self, machine: Machine) -> None:
        """The guard is about to kill what runs."""
        ...


class Container:
    """One container of an engine, from its creation on."""

    def __init__(self, machine: Machine, spec: ContainerSpec) -> None:
        self.machine = machine
        self.spec = spec
        self.key = spec.key
        self.hash = spec_hash(spec)
        self.folder = machine.folder / "runs" / key_name(spec.key)
        self.folder.mkdir(parents=True)
        (self.folder / PROGRESS_FILE).touch()
        self.state: State = "created"
        self.started_at = 0
        self.exited_at = 0
        self.exit_code: int | None = None
        self.out_of_memory = False
        self.lease_ended = False
        self.finished = False
        """It came to the end of its work, unasked."""
        self.asked = False
        self.said = b"ready\n"
        """Its output."""
        self.ports = _ports(spec)
        self.program: Program | None = None
        self.waiters: list[asyncio.Future[None]] = []
        self._written: list[tuple[float, int]] = []

    def seen(self) -> Seen:
        return Seen(
            key=self.key,
            state=self.state,
            spec_hash=self.hash,
            started_at=self.started_at,
            exited_at=self.exited_at,
            exit_code=self.exit_code,
            out_of_memory=self.out_of_memory,
            lease_ended=self.lease_ended,
        )

    def note_written(self) -> None:
        """Called before each line of the progress file: note its length."""
        self._written.append((self.machine.world.now, (self.folder / PROGRESS_FILE).stat().st_size))

    def lose_tail(self, since: float) -> None:
        """Forget the lines that were written later than that."""
        size = next((size for at, size in self._written if at > since), None)
        if size is not None and self.folder.exists():
            os.truncate(self.folder / PROGRESS_FILE, size)
            self.machine.witness.lost_words(self.key)

    def end(self, code: int | None, *, out_of_memory: bool = False) -> None:
        if self.state != "running":
            return
        self.state, self.exit_code, self.out_of_memory = "exited", code, out_of_memory
        self.exited_at = self.machine.host.clock()
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.machine.witness.ended(self)
        self.machine.changed()


def _ports(spec: ContainerSpec) -> list[int]:
    rank = int(spec.env["DORM_RANK"])
    own = int(spec.env["DORM_PEERS"].split(",")[rank].rpartition(":")[2])
    master = int(spec.env["DORM_MASTER_PORT"]) if rank == 0 else 0
    return [port for port in (own, master) if port]


class Machine:
    """One machine with its engine."""

    def __init__(
        self,
        world: World,
        host: Host,
        name: str,
        *,
        cpu: int,
        program: Callable[[Container, Machine], Program],
        witness: Witness,
    ) -> None:
        """`name` is the node's; another machine may have had it before."""
        self.world = world
        self.host = host
        self.name = name
        self.place = host.name
        self.cpu = cpu
        self.folder: Path = host.folder
        self.containers: dict[Key, Container] = {}
        self.strays: list[Container] = []
        """Of a folder that was removed: no agent sees them, and only the guard of that folder knows of them."""
        self.folders_lost = 0
        self.powered = True
        self.engine_up = True
        self.delay_s = 0.02
        """What the engine takes for a request."""
        self.image_missing = False
        self.disk_full = False
        self.create_fails = False
        """Whether its engine answers 500 to each request for a container."""
        self.fails_after_s = 0.0
        """Seconds after its start at which each container started now fails; 0 for none."""
        self.launch_s = 0.0
        """Seconds that the engine takes to start a container, in addition to `delay_s`."""
        self.ill = ""
        """The line with which the operator's health program fails, "" while it succeeds."""
        self.checkpoints: Path = self.folder / "checkpoints"
        """Where the shared folder is mounted: a link, to an empty folder of its own while it is not."""
        self._shared = world.folder / "checkpoints"
        self.unmounted: Path = self.folder / "not mounted"
        self.unmounted.mkdir()
        self.checkpoints.symlink_to(self._shared)
        self.mounted_at = 0.0
        """When the folder was last mounted or unmounted."""
        self.strangers: set[int] = set()
        """Ports that programs of others listen on."""
        self.lease_until: float | None = None
        self.guard_s = 1.0
        """How late the guard is."""
        self.calm = False
        self.witness = witness
        self.listeners: list[Callable[[], None]] = []
        self._program = program
        self.boots = 0
        """How often it was without power."""
        self._guard_armed = False

    # --- time ----------------------------------------------------------------------------------------------------------

    def later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """A timer that a loss of power takes away."""
        self.world.after(seconds, self._if_still, self.boots, act, args)

    def _if_still(self, boot: int, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if boot == self.boots and self.powered:
            act(*args)

    def changed(self) -> None:
        """Send a hint to listeners, unless the engine is down."""
        if self.engine_up:
            for listener in self.listeners:
                listener()

    # --- what the engine does ------------------------------------------------------------------------------------------

    def running(self) -> list[Container]:
        known = [container for container in self.containers.values() if container.state == "running"]
        return known + [container for container in self.strays if container.state == "running"]

    def create(self, spec: ContainerSpec, *, ahead: bool = False) -> Container:
        """Raises what a runtime raises.  A failure `ahead` of the release does not count as the app's."""
        known = self.containers.get(spec.key)
        if known is not None:
            if known.hash != spec_hash(spec):
                raise Conflict(f"{key_name(spec.key)} was made otherwise")
            return known
        if self.image_missing:
            if not ahead:
                self.witness.could_not_start(spec.key)
            raise Refused("image", "no such image")
        if self.disk_full:
            raise Unavailable("no space left on device")
        if self.create_fails:
            raise Unavailable("create: invalid log driver (500)", doing="create", said="invalid log driver (500)")
        made = self.containers[spec.key] = Container(self, spec)
        return made

    def put(self, key: Key, name: str, content: bytes) -> None:
        """Replace a file in a container's private directory in one step, or raise what a runtime raises."""
        container = self.containers.get(key)
        if container is None:
            raise KeyError(key)
        if self.disk_full:
            raise Unavailable("no space left on device")
        aside = container.folder / f".{name}"
        aside.write_bytes(content)
        aside.replace(container.folder / name)

    def launch(self, key: Key) -> None:
        """Start a created container; a repeated request, or one for a removed container, does nothing."""
        container = self.containers.get(key)
        if container is None or container.state != "created":
            return
        if not os.path.isdir(container.spec.checkpoint_dir):
            self.witness.could_not_start(key)
            raise Refused("spec", "invalid mount config: bind source path does not exist")
        container.state, container.started_at = "running", self.host.clock()
        container.program = self._program(container, self)
        container.program.calm = self.calm
        self.witness.started(container)
        container.program.start()
        self.changed()
        self._arm_guard()

    def terminate(self, key: Key) -> None:
        container = self.containers.get(key)
        if container is not None and container.state == "running" and container.program is not None:
            container.program.terminate()

    def kill(self, key: Key) -> None:
        container = self.containers.get(key)
        if container is not None:
            container.end(137)

    def remove(self, key: Key, *, by_hand: bool = False) -> None:
        container = self.containers.get(key)
        if container is None:
            return
        if container.state == "running":
            raise Conflict(f"{key_name(key)} runs")
        if not by_hand:
            self.witness.removed(container)
        shutil.rmtree(container.folder, ignore_errors=True)
        del self.containers[key]

    def listens(self, address: str, port: int) -> bool:
        """Whether something on this machine listens there."""
        return port in self.strangers or any(port in container.ports for container in self.running())

    def look_at(self, folders: Mapping[str, Path], note: Callable[[str], None]) -> Found:
        """Return what an agent finds out about its disk (`agents.fitness`)."""
        del folders, note
        free = 0 if self.disk_full else _DISK
        return Found({"data": FoundFolder(Room(free, _DISK), Room(10**6, 10**6), True)}, Room(0, 0))

    # --- the lease -----------------------------------------------------------------------------------------------------

    def extend_lease(self, seconds: float) -> None:
        self.witness.extended(self, seconds)
        self.lease_until = self.world.now + seconds
        self._arm_guard()

    def _arm_guard(self) -> None:
        if self.lease_until is not None and not self._guard_armed:
            self._guard_armed = True
            self.later(max(0.0, self.lease_until - self.world.now) + self.guard_s, self._guard)

    def _guard(self) -> None:
        self._guard_armed = False
        if self.lease_until is None:
            return
        if self.world.now < self.lease_until:
            self._arm_guard()
            return
        self._kill(container for container in self.containers.values())
        if any(container.state == "created" for container in self.containers.values()):
            self._guard_armed = True
            self.later(_AGAIN_S, self._guard)

    def _kill(self, containers: Iterable[Container]) -> None:
        """Kill these containers: their lease has ended."""
        running = [container for container in containers if container.state == "running"]
        if running:
            self.witness.lease_over(self)
        for container in running:
            container.lease_ended = True
            container.end(137)

    # --- faults --------------------------------------------------------------------------------------------------------

    def opened(self, folders_lost: int) -> None:
        """Raises Displaced for an agent that has opened the folder before it was removed."""
        if folders_lost != self.folders_lost:
            raise Displaced("the node's folder was removed while the agent ran")

    def lose_folder(self, *, whole: bool) -> None:
        """Remove the runtime's folder, or the node's whole folder: its containers keep running, and end with the last lease in
        it."""
        self.folders_lost += 1
        if whole:
            shutil.rmtree(self.folder / "agent", ignore_errors=True)
        lost = list(self.containers.values())
        for container in lost:
            gone = container.folder.with_name(f"{container.folder.name}.lost.{self.folders_lost}")
            os.rename(container.folder, gone)  # no process reads its output from now on
            container.folder = gone
        self.containers.clear()
        self.strays += lost
        until = self.world.now if self.lease_until is None else self.lease_until
        self.lease_until = None
        self.later(max(0.0, until - self.world.now) + self.guard_s, self._guard_strays, lost)

    def _guard_strays(self, strays: list[Container]) -> None:
        self._kill(strays)

    def lose_power(self, *, tail: bool) -> None:
        """End everything that runs; with `tail`, also lose data that was not synced to the disk."""
        code = 255
        self.host.lose_power()
        self.engine_up = False
        for container in [*self.containers.values(), *self.strays]:
            container.end(code)
            if tail:
                container.lose_tail(self.world.now - _UNSYNCED_S)
        self.powered = self._guard_armed = False
        self.boots += 1
        self.listeners.clear()

    def boot(self) -> None:
        self.powered = self.engine_up = True
        self.lease_until = None if self.lease_until is None else min(self.lease_until, self.world.now)

    def stop_engine(self, *, live_restore: bool) -> None:
        """End dockerd; without live-restore, its containers end with it."""
        self.engine_up = False
        if not live_restore:
            for container in self.running():
                container.end(137)

    def start_engine(self) -> None:
        if self.powered and not self.engine_up:
            self.engine_up = True
            self.changed()

    @property
    def mounted(self) -> bool:
        """Whether the shared folder of checkpoints is mounted."""
        return self.checkpoints.readlink() == self._shared

    @property
    def marker(self) -> str:
        """The id of the folder that is there instead of the shared one, or of that; "" for none."""
        path = self.checkpoints / MARKER
        return path.read_text().strip() if path.exists() else ""

    def mount(self, shared: bool) -> None:
        """Mount the shared folder of checkpoints, or unmount it to show the empty one below."""
        wanted = self._shared if shared else self.unmounted
        if self.checkpoints.readlink() == wanted:
            return
        self.checkpoints.unlink()
        self.checkpoints.symlink_to(wanted)
        self.mounted_at = self.world.now
        for container in (*self.containers.values(), *self.strays):
            self.witness.folder_gone(container.key)

    def remove_by_hand(self, key: Key) -> None:
        """Do `docker rm -f`."""
        self.kill(key)
        self.witness.lost_words(key)
        self.remove(key, by_hand=True)

    def be_calm(self) -> None:
        """From now on, neither the machine nor its programs fail, and their work ends soon."""
        self.calm, self.delay_s = True, 0.02
        self.image_missing = self.disk_full = self.create_fails = False
        self.fails_after_s, self.launch_s, self.ill = 0.0, 0.0, ""
        self.strangers.clear()
        self.mount(True)
        for container in self.running():
            if container.program is not None:
                container.program.be_calm()
