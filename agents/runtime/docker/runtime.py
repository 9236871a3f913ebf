"""The Docker runtime: each container is a container of one engine on this machine; several nodes may share the engine.

The engine is the only memory, except for the identity of the node's root, kept in a file there: with it, clusters of the same
name can share an engine.  A container is found by its labels, named after root and key, and never starts twice:

* `ensure` holds a lock for the key: inspect, create if there is none (name taken: inspect again), compare the result with the
  request, start (`launcher`).  After a kill or an outage at any point, the next `ensure` continues from the container's
  present state.
* A started container has a start time, and is left alone, ended or not.
* A separate process enforces the node's lease (`agents.runtime.docker.guard`): do not run the agent under an init system that
  kills its whole control group with it.
* If the start failed for a permanent reason, or the engine did not create what was requested, the container is removed and
  `Refused` is raised.  If the reason may pass, it is also removed, and `Conflict` is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from agents import node_lease
from agents.runtime import cgroups, interface, stopping
from agents.runtime.docker import container_config
from agents.runtime.docker import guard as docker_guard
from agents.runtime.docker.container_config import Profile
from agents.runtime.docker.disk import DiskWatch
from agents.runtime.docker.engine import Engine, Images, Json, Rejected, read_logs
from agents.runtime.docker.execution import DockerExecution
from agents.runtime.docker.launcher import Launcher, NoImage, container_user
from agents.runtime.interface import (
    NOT_FOUND,
    TIMED_OUT,
    Conflict,
    ContainerSpec,
    Key,
    Refused,
    Seen,
    Unavailable,
    Use,
    Wanted,
    check_spec,
)
from agents.runtime.long_work import Inflight
from agents.runtime.run_dirs import RunDirs
from events.requests import plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping

    from agents.runtime.interface import Command
    from agents.runtime.workdir import BlobCache
    from events.requests import LogPiece

T = TypeVar("T")
log = structlog.get_logger(__name__)

_GUARD_S: Final = 20.0
_DIE_S: Final = 30.0
_RECONNECT_S: Final = (0.1, 5.0)
_INSPECTED_AT_ONCE: Final = 16
_KEPT_OUTPUT: Final = 2000
_FOUND_DEAD: Final = 255
_ASKING_S: Final = (0.01, 0.1)
"""Seconds between looks at a container that was asked to stop, at first and after a while: its init process waits for them,
and so does a script that is held."""
_A_WHILE_S: Final = 5.0
_SIGNALLED: Final = "asked"
"""The file in a container's folder with the processes that were asked to stop: `pid start` on each line."""


class DockerRuntime:
    """One node's containers on one engine.

    `root` is this node's private folder; `url` is unix://PATH or tcp://HOST:PORT (default DOCKER_HOST, else the usual
    socket); `user` is the containers' `uid:gid` (default: the agent's own, or if that is root, one for each tenant);
    `profile` says what else the node lets containers do; checkpoint directories must lie below `checkpoint_root`.
    """

    name = "docker"
    limits = True
    checkpoint_mount = container_config.CHECKPOINT_MOUNT
    outputs_mount = container_config.OUTPUTS_MOUNT
    mounts = True

    def __init__(
        self,
        node: str,
        root: Path,
        *,
        url: str | None = None,
        cluster: str = "dorm",
        user: str | None = None,
        checkpoint_root: Path | None = None,
        profile: Profile | None = None,
    ) -> None:
        self._dirs = RunDirs(root)
        self._engine = Engine(url)
        self._images = Images(self._engine)
        self._host = container_config.Host(
            cluster=cluster,
            node=node,
            owner="",
            cpus=1,
            swap_limit=True,
            checkpoint_root=checkpoint_root,
            profile=msgspec.structs.replace(profile or Profile(), user=container_user(user)),
        )
        self._launcher = Launcher(self._engine, self._dirs, self._seen)
        self._disk = DiskWatch(self._engine, self._dirs, lambda: self._host)
        self._watching: asyncio.Task[None] | None = None
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._inflight = Inflight()
        self._ended: dict[str, Seen] = {}
        self._places: dict[Key, cgroups.Place] = {}
        self._closed = asyncio.Event()
        self._live_restore = False
        self._engine_folder: Path | None = None

    @property
    def blobs(self) -> BlobCache:
        """The parts of shipped folders."""
        return self._dirs.blobs

    @property
    def serves(self) -> str:
        """It confines the apps of all tenants."""
        return ""

    @property
    def engine_folder(self) -> Path | None:
        """The folder that the engine states, if the engine is on this machine."""
        return self._engine_folder

    def owner_of(self, tenant: str) -> tuple[int, int] | None:
        """Return the user of a tenant's containers."""
        return self._host.profile.user_of(tenant)

    async def open(self) -> None:
        """Connect.  Raises `Unavailable` if no engine answers, `Conflict` if another agent has the root."""
        self._closed.clear()
        await asyncio.to_thread(self._dirs.open)
        try:
            owner = await asyncio.to_thread(self._dirs.identity)
            info = await self._engine.open()
        except BaseException:
            self._dirs.close()
            raise
        self._host = msgspec.structs.replace(
            self._host, owner=owner, cpus=int(info.get("NCPU") or 1), swap_limit=bool(info.get("SwapLimit"))
        )
        self._live_restore = bool(info.get("LiveRestoreEnabled"))
        folder = str(info.get("DockerRootDir") or "")
        self._engine_folder = Path(folder) if folder and self._engine.url.startswith("unix://") else None
        self._watching = asyncio.create_task(self._disk.run())
        if not self._host.swap_limit:
            log.warning("this kernel cannot limit swap: memory limits leave it open", node=self._host.node)

    async def close(self) -> None:
        """Release the engine and the root; containers keep running."""
        self._closed.set()
        if self._watching is not None:
            self._watching.cancel()
        await self._images.close()
        await self._inflight.drain()
        await self._engine.close()
        if self._watching is not None:
            await asyncio.wait([self._watching])
        self._dirs.close()

    async def list(self) -> list[Seen]:
        """Return all containers with the labels of this cluster, node and root, sorted by key."""
        summaries = await self._engine.list(container_config.own_labels(self._host))
        at_once = asyncio.Semaphore(_INSPECTED_AT_ONCE)

        async def look(summary: Json) -> Seen | None:
            if summary["State"] == "exited" and summary["Id"] in self._ended:
                return self._ended[summary["Id"]]
            key = container_config.key_of(summary["Labels"])
            if key is None:
                log.warning("a container with our labels has no key", container=summary["Id"])
                return None
            async with at_once:
                info = await self._engine.inspect(summary["Id"])
            return None if info is None else self._seen(key, info)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(look(summary)) for summary in summaries]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        containers = {summary["Id"]: task.result() for summary, task in zip(summaries, tasks, strict=True)}
        await self._mark_interrupted(containers)
        self._ended = {
            name: seen
            for name, seen in containers.items()
            if seen is not None and seen.state == "exited" and not container_config.never_ran(seen)
        }
        return sorted((seen for seen in containers.values() if seen is not None), key=lambda s: s.key)

    async def _mark_interrupted(self, containers: dict[str, Seen | None]) -> None:
        """Mark newly ended containers that did not end by themselves: a person had the engine stop them, or the engine has
        restarted since, which stops all of them with codes that look like their own."""
        ended = {
            name: seen
            for name, seen in containers.items()
            if seen is not None and seen.state == "exited" and seen.started_at and name not in self._ended
        }
        if not ended:
            return
        events = await self._engine.remembered(container_config.own_labels(self._host))
        for name, seen in ended.items():
            # If the engine lets containers outlive it, a container that ended while the engine was down ended by
            # itself.  Engines report 255 for containers that they find dead at their start, for example after a power
            # loss.
            if self._stopped_for(seen):
                continue
            alone = ("die", name) in events or (self._live_restore and seen.exit_code != _FOUND_DEAD)
            if ("kill", name) in events or not alone:
                containers[name] = msgspec.structs.replace(seen, interrupted=True)

    def _seen(self, key: Key, info: Json) -> Seen:
        seen = container_config.seen(key, info)
        if reason := self._stopped_for(seen):
            return msgspec.structs.replace(seen, error=reason)
        if seen.state == "exited" and seen.exit_code and (self._dirs.container_dir(key) / docker_guard.KILLED).exists():
            return msgspec.structs.replace(seen, lease_ended=True)
        return seen

    def _stopped_for(self, seen: Seen) -> str:
        """Return why this runtime has ended it as the app's own failure, "" if it has not."""
        failed = seen.state == "exited" and seen.started_at and seen.exit_code
        return self._disk.reason(self._dirs.container_dir(seen.key)) if failed else ""

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        """Create and start it unless it was started before; a missing image is pulled.

        Raises `Refused`, `Conflict`, or `Unavailable` while a long pull is under way or if the node's lease has expired.
        """
        return await self._with_image(spec, lambda: self._ensure(spec, files or {}))

    async def prepare(self, spec: ContainerSpec) -> None:
        """Create it unless it is there; a missing image is pulled.  Raises as `ensure` does."""
        await self._with_image(spec, lambda: self._create(spec))

    async def _with_image(self, spec: ContainerSpec, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `make` returns, after a pull if it raises `NoImage`."""
        check_spec(spec)
        if not spec.image:
            raise Refused(
                "image",
                "the spec names no image, and this node runs containers with Docker: add `image: …` to the spec",
                code="container.image.missing",
            )
        if not self._host.profile.takes(spec.image):
            raise Refused(
                "image",
                f"this node does not run the image {spec.image}; it allows {', '.join(self._host.profile.images)} "
                "(dorm agent --allow-image)",
                code="container.image.not_allowed",
            )
        ended = self._images.ended
        with contextlib.suppress(NoImage):
            return await self._inflight.run(make())
        if self._images.ended != ended:  # A pull has ended since the engine was called, and may have brought the image.
            with contextlib.suppress(NoImage):
                return await self._inflight.run(make())
        await self._images.fetch(spec.image)  # holds no lock: a stop need not wait for it
        try:
            return await self._inflight.run(make())
        except NoImage as failure:
            raise Refused(
                "image", f"{spec.image} was pulled and is not there: {failure}", code="container.image.unavailable"
            ) from failure

    async def _ensure(self, spec: ContainerSpec, files: Mapping[str, bytes]) -> Seen:
        async with self._lock(spec.key):
            return await self._launcher.ensure(spec, files, self._host)

    async def _create(self, spec: ContainerSpec) -> None:
        async with self._lock(spec.key):
            await self._launcher.create(spec, self._host)

    async def extend_lease(self, seconds: float) -> None:
        """Extend the lease.  A guard enforces it (`agents.runtime.docker.guard`), which is started if there is none."""
        # Computed before any wait, so that an agent that is paused in between extends nothing late.
        deadline = node_lease.after(seconds)
        await asyncio.to_thread(self._have_guard)
        await self._dirs.extend_lease(deadline)

    def _have_guard(self) -> None:
        """Start a guard if there is none.  Raises `Unavailable` if none can be started."""
        if self._dirs.locked(docker_guard.LOCK):
            return
        command = [sys.executable, "-I", "-S", docker_guard.__file__]
        try:
            subprocess.run(
                [*command, str(self._dirs.root), self._engine.url, *container_config.own_labels(self._host)],
                env={"LANG": "C.UTF-8"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                timeout=_GUARD_S,
                check=True,
            )
        except subprocess.CalledProcessError as failure:
            output = failure.stderr.decode(errors="replace").strip()[-500:]
            raise Unavailable(
                f"no guard of the lease could be started: {output}", code="node_lease.no_guard"
            ) from failure
        except (OSError, subprocess.TimeoutExpired) as failure:
            raise Unavailable(
                f"no guard of the lease could be started: {failure}", code="node_lease.no_guard"
            ) from failure

    async def lease_left(self) -> float | None:
        """Read the lease from the record in the root."""
        return await self._dirs.lease_left()

    async def root_id(self) -> str:
        """Return the root's id, which its containers on the engine carry too."""
        return self._host.owner

    async def stop(self, key: Key, grace_s: float) -> bool:
        """Ask its processes, which this machine lists, to stop; after `grace_s` SIGKILL."""
        async with self._lock(key):  # not in the middle of a start
            info = await self._own(key)
        if info is None or container_config.seen(key, info).state != "running":
            return False
        if grace_s > 0:
            try:
                async with asyncio.TaskGroup() as group:
                    asking = group.create_task(self._ask(key, info["Id"], int(info["State"].get("Pid") or 0)))
                    ended = await self._engine.wait(info["Id"], grace_s)
                    asking.cancel()
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from failures
            if ended:
                return False
        await self._engine.kill(info["Id"], "SIGKILL")
        if not await self._engine.wait(info["Id"], _DIE_S):
            raise Unavailable(f"{key} is still there {_DIE_S:.0f} s after SIGKILL", code="container.unkillable")
        return True

    async def _ask(self, key: Key, container_id: str, init: int) -> None:
        """Ask it to stop, and return when nothing is left to say.  The init process ends with its child, and the kernel then
        kills all others; so it is held (SIGSTOP) until no other process is left.  If this machine does not show the processes
        (an engine elsewhere, or an agent in a container of its own), the init process gets SIGTERM and passes it to the group
        of its child."""
        folder = self._dirs.container_dir(key)
        if not await asyncio.to_thread(_is_init_of, init, container_id):
            log.warning("the processes of a container are out of view: SIGTERM goes to all of them", key=key)
            await self._engine.kill(container_id, "SIGTERM")
            return
        signalled = await asyncio.to_thread(_signalled_before, folder)
        stop = await asyncio.to_thread(lambda: stopping.Stopping(_text(folder / stopping.FILE), signalled))
        clock = asyncio.get_running_loop().time
        later = clock() + _A_WHILE_S
        while await asyncio.to_thread(_ask_once, stop, folder, init, container_id, clock()):  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(_ASKING_S[clock() > later])

    async def run(self, key: Key, command: tuple[str, ...], timeout_s: float) -> int:
        """Run a command in the running container, as its user and with its environment."""
        info = await self._running(key)
        try:
            exec_id = await self._engine.exec_create(info["Id"], command)
            ended, output = await self._engine.exec_start(exec_id, timeout_s, _KEPT_OUTPUT)
        except Rejected as answer:
            if answer.status == 400:
                return NOT_FOUND
            raise KeyError(key) from answer
        state = await self._engine.exec_inspect(exec_id)
        if not ended:
            await asyncio.to_thread(_kill_inside, int(state.get("Pid") or 0), info["Id"])
            code = TIMED_OUT
        else:
            code = int(state["ExitCode"] or 0)
            if code == 126 and b"executable file not found" in output:
                code = NOT_FOUND  # engines before 28 return 126 for both
        if code:
            log.warning("a command in a container failed", key=key, command=command, code=code, output=output)
        return code

    async def variables(self, key: Key) -> dict[str, str]:
        """Ask the engine."""
        given = (await self._running(key))["Config"].get("Env") or ()
        return dict(variable.partition("=")[::2] for variable in given)

    async def runs(self, key: Key) -> bool:
        """Ask the engine."""
        with contextlib.suppress(KeyError):
            return bool(await self._running(key))
        return False

    async def execute(self, key: Key, command: Command) -> DockerExecution:
        """Run a command by the engine, with a keeper."""
        return await DockerExecution.start(self._engine, await self._running(key), command)

    async def listener(self, key: Key, port: int) -> interface.Listener | None:
        """Look among the processes that its control group names."""
        info = await self._running(key)
        return await asyncio.to_thread(lambda: interface.find(interface.in_container(info["Id"]), port))

    async def _running(self, key: Key) -> Json:
        """Return the engine's description of a container that runs.  Raises KeyError."""
        info = await self._own(key)
        if info is None or container_config.seen(key, info).state != "running":
            raise KeyError(key)
        return info

    async def remove(self, key: Key) -> None:
        """Delete it with its anonymous volumes and its folder.  Raises `Conflict` if it runs."""
        async with self._lock(key):
            info = await self._own(key)
            if info is not None:
                try:
                    await self._engine.delete(info["Id"])
                except Rejected as answer:
                    raise Conflict(f"{key}: {answer.message}") from answer
            self._places.pop(key, None)
            await asyncio.to_thread(self._dirs.remove, key)

    async def logs(self, key: Key, *, follow: bool, tail: int | None) -> AsyncGenerator[bytes, None]:
        """Yield the stdout and stderr that the engine kept."""
        async with contextlib.aclosing(self.timed_logs(key, Wanted(follow=follow, tail=tail))) as pieces:
            async for piece in pieces:
                yield plain(piece)

    async def timed_logs(self, key: Key, wanted: Wanted) -> AsyncGenerator[LogPiece, None]:
        """Yield the same with the engine's times."""
        async with self._output(key) as name, contextlib.aclosing(read_logs(self._engine, name, wanted)) as pieces:
            async for piece in pieces:
                yield piece

    @contextlib.asynccontextmanager
    async def _output(self, key: Key) -> AsyncIterator[str]:
        """Yield the engine's id of a container whose output is read.  Raises KeyError if there is none (any more)."""
        info = await self._own(key)
        if info is None:
            raise KeyError(key)
        try:
            yield info["Id"]
        except Rejected as answer:
            raise KeyError(key) from answer

    async def use(self, key: Key) -> Use | None:
        """Read the cgroup's files, or call the engine if they are out of view."""
        place = self._places.get(key)
        if place is not None:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(cgroups.read, place)
            del self._places[key]
        info = await self._own(key)
        if info is None or container_config.seen(key, info).state != "running":
            return None
        place = await asyncio.to_thread(cgroups.find, info["State"]["Pid"])
        if place is not None and info["Id"] in str(place.cpu):
            with contextlib.suppress(OSError, ValueError, KeyError):
                use = await asyncio.to_thread(cgroups.read, place)
                self._places[key] = place
                return use
        return container_config.use_of(await self._engine.stats(info["Id"]))

    def run_dir(self, key: Key) -> Path:
        """Return the private directory, mounted inside as /dorm/run."""
        return self._dirs.run_dir(key)

    def run_mount(self, key: Key) -> str:
        """Return where it is mounted."""
        return container_config.RUN_MOUNT

    async def put(self, key: Key, name: str, content: bytes) -> None:
        """Replace a file in the private directory."""
        await self._dirs.put_file(key, name, content)

    async def hints(self) -> AsyncGenerator[None, None]:
        """Yield for each of the engine's events about our containers, and once after each connection."""
        delay = _RECONNECT_S[0]
        while not self._closed.is_set():
            try:
                async with contextlib.aclosing(self._engine.events(container_config.own_labels(self._host))) as events:
                    async for _ in events:
                        delay = _RECONNECT_S[0]
                        yield None
            except Unavailable as failure:
                if not self._closed.is_set():
                    log.info("no events from the engine", node=self._host.node, error=str(failure))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._closed.wait()
            delay = min(delay * 2, _RECONNECT_S[1])

    def _lock(self, key: Key) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    async def _own(self, key: Key) -> Json | None:
        """Return the container of this key if it is this node's, else None."""
        info = await self._engine.inspect(container_config.container_name(self._host, key))
        if info is None:
            return None
        labels = info["Config"]["Labels"] or {}
        ours = all(
            f"{n}={labels.get(n)}" in container_config.own_labels(self._host) for n in container_config.OWN_LABELS
        )
        return info if ours else None


def _is_init_of(pid: int, container_id: str) -> bool:
    """Return whether this machine shows the container's init process, and lets the agent signal it."""
    try:
        if pid <= 1 or container_id not in Path(f"/proc/{pid}/cgroup").read_text():
            return False
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _ask_once(stop: stopping.Stopping, folder: Path, init: int, container_id: str, now: float) -> bool:
    """Take the next step of stopping a container; return whether there may be another."""
    if stop.waits(now, stopping.alive):
        return True
    if not _is_init_of(init, container_id):
        return False
    try:
        start = node_lease.start_time(init)
        table = stopping.look(init)
        own = [process for process in table.values() if process.parent == init]
        main = min(own, key=lambda process: (int(process.id[1]), process.pid)).pid if own else 0
        living = any(process.state not in "ZX" for process in table.values())
        signals = stop.step(now, table, main)
    except (OSError, ValueError):
        return False  # it has ended
    _note_signalled(folder, stop)
    hold = [((init, start), int(signal.SIGSTOP if living else signal.SIGCONT))]
    stopping.deliver(
        [*hold, *signals], lambda text: log.warning("a container's process was not signalled", reason=text)
    )
    return living


def _note_signalled(folder: Path, stop: stopping.Stopping) -> None:
    """Note who was asked, for the agent that comes after this one: some programs take a second SIGTERM as a reason to
    hurry.  A full disk must not keep an app from being stopped."""
    with contextlib.suppress(OSError):
        (folder / _SIGNALLED).write_text("".join(f"{pid} {start}\n" for pid, start in stop.signalled))


def _signalled_before(folder: Path) -> list[tuple[int, str]]:
    lines = [line.split() for line in _text(folder / _SIGNALLED).splitlines()]
    return [(int(line[0]), line[1]) for line in lines if len(line) == 2 and line[0].isdecimal()]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _kill_inside(pid: int, container_id: str) -> None:
    """Kill an exec: the engine has no call for it.  Its pid is this machine's; its cgroup shows that it is the
    container's."""
    with contextlib.suppress(OSError):
        if pid > 1 and container_id in Path(f"/proc/{pid}/cgroup").read_text():
            os.kill(pid, signal.SIGKILL)
