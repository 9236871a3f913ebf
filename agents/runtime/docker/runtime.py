"""The Docker runtime: each container is a container of one engine on this machine; several nodes may share the engine.

The engine is the only memory, except for the identity of the node's root, kept in a file there: with it, clusters of the same
name can share an engine.  A container is found by its labels, named after root and key, and never starts twice:

* `ensure` holds a lock for the key: inspect, create if there is none (name taken: inspect again), compare the result with the
  request, start.  After a kill or an outage at any point, the next `ensure` continues from what it finds.
* A started container has a start time, and is left alone, ended or not.
* A separate process enforces the node's lease (`agents.runtime.docker.guard`): do not run the agent under an init system that
  kills its whole control group with it.
* Before the engine is told to start a container, a note with its id is written beside its private directory.  If the note
  exists and the container has not started, the request of a dead agent may still be under way: so wait a little, and look
  again.
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
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

import msgspec
import structlog

from agents import lease
from agents.runtime import cgroups
from agents.runtime.docker import config
from agents.runtime.docker import guard as docker_guard
from agents.runtime.docker.engine import Engine, Json, Rejected
from agents.runtime.docker.images import Images
from agents.runtime.docker.user import container_user
from agents.runtime.inflight import Inflight
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
    check_spec,
)
from agents.runtime.run_dirs import RunDirs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

log = structlog.get_logger(__name__)

_SETTLE_S: Final = 0.5
_CREATE_TRIES: Final = 4
_GUARD_S: Final = 20.0
_DIE_S: Final = 30.0
_RECONNECT_S: Final = (0.1, 5.0)
_INSPECTED_AT_ONCE: Final = 16
_KEPT_OUTPUT: Final = 2000
_FOUND_DEAD: Final = 255


class _NoImage(Exception):
    """The engine does not have the image."""


class DockerRuntime:
    """One node's containers on one engine.

    `root` is this node's private folder; `url` is unix://PATH or tcp://HOST:PORT (default DOCKER_HOST, else the usual
    socket); `user` is the containers' `uid:gid` (default: the agent's own, or 65534:65534 if that is root); checkpoint
    directories must lie below `checkpoint_root`.
    """

    name = "docker"
    limits = True
    checkpoint_mount = config.CHECKPOINT_MOUNT

    def __init__(
        self,
        node: str,
        root: Path,
        *,
        url: str | None = None,
        cluster: str = "dorm",
        user: str | None = None,
        checkpoint_root: Path | None = None,
    ) -> None:
        self._owner = container_user(user)
        self._dirs = RunDirs(root, self._owner)
        self._engine = Engine(url)
        self._images = Images(self._engine)
        self._host = config.Host(
            cluster=cluster,
            node=node,
            owner="",
            user=f"{self._owner[0]}:{self._owner[1]}",
            cpus=1,
            swap_limit=True,
            checkpoint_root=checkpoint_root,
        )
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._inflight = Inflight()
        self._ended: dict[str, Seen] = {}
        self._places: dict[Key, cgroups.Place] = {}
        self._commands: set[tuple[str, tuple[str, ...]]] = set()
        self._closed = asyncio.Event()
        self._live_restore = False

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
        if not self._host.swap_limit:
            log.warning("this kernel cannot limit swap: memory limits leave it open", node=self._host.node)

    async def close(self) -> None:
        """Release the engine and the root; containers run on."""
        self._closed.set()
        await self._images.close()
        await self._inflight.drain()
        await self._engine.close()
        self._dirs.close()

    async def list(self) -> list[Seen]:
        """Return all containers with the labels of this cluster, node and root, sorted by key."""
        summaries = await self._engine.list(config.own_labels(self._host))
        at_once = asyncio.Semaphore(_INSPECTED_AT_ONCE)

        async def look(summary: Json) -> Seen | None:
            if summary["State"] == "exited" and summary["Id"] in self._ended:
                return self._ended[summary["Id"]]
            key = config.key_of(summary["Labels"])
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
        found = {summary["Id"]: task.result() for summary, task in zip(summaries, tasks, strict=True)}
        await self._tell_interrupted(found)
        self._ended = {
            name: seen
            for name, seen in found.items()
            if seen is not None and seen.state == "exited" and not config.never_ran(seen)
        }
        return sorted((seen for seen in found.values() if seen is not None), key=lambda s: s.key)

    async def _tell_interrupted(self, found: dict[str, Seen | None]) -> None:
        """Mark newly ended containers that did not end by themselves: a person had the engine stop them, or the engine has
        restarted since, which stops all of them with codes that look like their own."""
        ended = {
            name: seen
            for name, seen in found.items()
            if seen is not None and seen.state == "exited" and seen.started_at and name not in self._ended
        }
        if not ended:
            return
        told = await self._engine.remembered(config.own_labels(self._host))
        for name, seen in ended.items():
            # If the engine lets containers outlive it, one that ended while the engine was down ended by itself.  Engines
            # report
            # 255 for containers that they find dead at their start, for example after a power loss.
            alone = ("die", name) in told or (self._live_restore and seen.exit_code != _FOUND_DEAD)
            if ("kill", name) in told or not alone:
                found[name] = msgspec.structs.replace(seen, interrupted=True)

    def _seen(self, key: Key, info: Json) -> Seen:
        found = config.seen(key, info)
        if (
            found.state == "exited"
            and found.exit_code
            and (self._dirs.container_dir(key) / docker_guard.KILLED).exists()
        ):
            return msgspec.structs.replace(found, lease_ended=True)
        return found

    async def ensure(self, spec: ContainerSpec) -> Seen:
        """Create and start it unless it was started before; a missing image is pulled.

        Raises `Refused`, `Conflict`, or `Unavailable` while a long pull is under way or if the node's lease has expired.
        """
        check_spec(spec)
        if not spec.image:
            raise Refused(
                "image",
                "the spec names no image, and this node runs containers with Docker: add `image: …` to the spec",
                code="container.image.missing",
            )
        ended = self._images.ended
        with contextlib.suppress(_NoImage):
            return await self._inflight.run(self._ensure(spec))
        if self._images.ended != ended:  # A pull has ended since the engine was called, and may have brought the image.
            with contextlib.suppress(_NoImage):
                return await self._inflight.run(self._ensure(spec))
        await self._images.fetch(spec.image)  # holds no lock: a stop need not wait for it
        try:
            return await self._inflight.run(self._ensure(spec))
        except _NoImage as failure:
            raise Refused(
                "image", f"{spec.image} was pulled and is not there: {failure}", code="container.image.unavailable"
            ) from failure

    async def _ensure(self, spec: ContainerSpec) -> Seen:
        async with self._lock(spec.key):
            name = config.container_name(self._host, spec.key)
            checkpoints = await asyncio.to_thread(self._checkpoints, spec)
            wanted = config.container_config(self._host, spec, self.run_dir(spec.key), checkpoints)
            info = await self._engine.inspect(name)
            if info is None:
                await self._make_dir(spec.key)
                try:
                    info = await self._create(name, wanted)
                except (Refused, _NoImage):
                    await asyncio.to_thread(self._dirs.remove, spec.key)
                    raise
            if info["Config"]["Labels"] != {**info["Config"]["Labels"], **wanted["Labels"]}:
                raise Conflict(
                    f"{name} is another container: its labels are {info['Config']['Labels']}",
                    code="container.name.taken",
                )
            found = self._seen(spec.key, info)
            if found.state == "created":
                found = await self._start(name, spec.key, wanted, info)
            elif config.never_ran(found):
                await self._discard(name, spec.key)
                raise _fault(name, found.error)
            return found

    async def _make_dir(self, key: Key) -> None:
        await self._on_disk(key, lambda: self._dirs.make(key))

    async def _on_disk(self, key: Key, work: Callable[[], object]) -> None:
        """Run `work` in a thread.  Raises `Unavailable` if the node's disk refuses the write."""
        try:
            await asyncio.to_thread(work)
        except OSError as failure:
            raise Unavailable(
                f"{key}: its folder cannot be written: {failure.strerror}", code="container.folder.not_writable"
            ) from failure

    async def _create(self, name: str, wanted: Json) -> Json:
        """Create a container.  After a client disconnects, an engine frees the name of its create request only some time
        later, so a name that is taken but belongs to no container is tried again."""
        for _ in range(_CREATE_TRIES):
            made = True
            try:
                await self._engine.create(name, wanted)
            except Rejected as answer:
                if answer.status == 404:
                    raise _NoImage(answer.message) from answer
                if answer.status == 400:
                    raise Refused("spec", answer.message) from answer
                made = False
            info = await self._engine.inspect(name)  # after 409 too: an earlier create of ours may have created it
            if info is not None:
                return info
            if made:
                break
            await asyncio.sleep(_SETTLE_S)
        raise Conflict(f"{name} is gone right after it was made", code="container.removed")

    async def _start(self, name: str, key: Key, wanted: Json, info: Json) -> Seen:
        await self._make_dir(key)
        if differences := config.differences(wanted, info, swap_limit=self._host.swap_limit):
            await self._discard(name, key)
            raise Refused(
                "spec", f"the engine did not make what was asked: {'; '.join(differences)}", code="container.differs"
            )
        await self._check_command(name, key, info)
        note = self._dirs.container_dir(key) / docker_guard.STARTING
        if await asyncio.to_thread(note.exists):
            await asyncio.sleep(_SETTLE_S)
            again = await self._engine.inspect(name)
            if again is not None and config.seen(key, again).state != "created":
                return config.seen(key, again)
        await self._on_disk(key, lambda: note.write_text(info["Id"]))
        await self._dirs.check_lease()  # The last thing before the start: a pull alone may have outlasted the lease.
        try:
            await self._engine.start(name)
        except Rejected as answer:
            await self._discard(name, key)
            raise _fault(name, answer.message) from answer
        started = await self._engine.inspect(name)
        if started is None:
            raise Conflict(f"{name} is gone right after it was started", code="container.removed")
        return config.seen(key, started)

    async def _check_command(self, name: str, key: Key, info: Json) -> None:
        """Refuse a command that the image does not have.  The engine can't detect this, because it starts the init process,
        which exists.  A command found once in an image is not looked up again."""
        command = str(info["Config"]["Entrypoint"][0])
        paths = config.candidates(command, info["Config"]["Env"] or [], info["Config"]["WorkingDir"])
        if (info["Image"], paths) in self._commands or any(path.startswith("/dorm/") for path in paths):
            return
        for path in paths:
            if await self._engine.executable(name, path) is not False:
                self._commands.add((info["Image"], paths))
                return
        await self._discard(name, key)
        raise Refused(
            "command", f"the image has no command {command!r} in {', '.join(paths)}", code="container.command.not_found"
        )

    async def _discard(self, name: str, key: Key) -> None:
        """Remove all of a container that never ran."""
        with contextlib.suppress(Rejected):
            await self._engine.delete(name)
        await asyncio.to_thread(self._dirs.remove, key)

    def _checkpoints(self, spec: ContainerSpec) -> Path | None:
        """Return the real checkpoint directory, owned by the containers' user; None if the spec has none.

        Raises `Refused` ("spec") if it is not a directory below the allowed root: a link that leads out of it would be an
        escape.
        """
        root = self._host.checkpoint_root
        if not spec.checkpoint_dir:
            return None
        if root is None:
            raise Refused("spec", "this node has no folder for checkpoints", code="container.checkpoints.missing")
        try:
            real = Path(spec.checkpoint_dir).resolve(strict=True)
            inside = root.resolve(strict=True) in real.parents
        except (OSError, RuntimeError) as failure:
            raise Refused(
                "spec", f"the checkpoint directory cannot be used: {failure}", code="container.checkpoints.not_found"
            ) from failure
        if not real.is_dir() or not inside:
            raise Refused(
                "spec",
                f"the checkpoint directory {spec.checkpoint_dir} is no directory below {root}",
                code="container.checkpoints.outside",
            )
        status = real.stat()
        if os.getuid() == 0 and (status.st_uid, status.st_gid) != self._owner:
            try:
                os.chown(real, *self._owner, follow_symlinks=False)
            except OSError as failure:  # a network file system may not let root do that, and may not need it
                log.warning("the checkpoint directory keeps its owner", path=str(real), error=str(failure))
        return real

    async def extend_lease(self, seconds: float) -> None:
        """Extend the lease.  A guard enforces it (`agents.runtime.docker.guard`), which is started if there is none."""
        # Computed before any wait, so that an agent that is paused meanwhile extends nothing late.
        deadline = lease.after(seconds)
        await asyncio.to_thread(self._have_guard)
        await self._dirs.extend_lease(deadline)

    def _have_guard(self) -> None:
        """Start a guard if there is none.  Raises `Unavailable` if none can be started."""
        if self._dirs.locked(docker_guard.LOCK):
            return
        command = [sys.executable, "-I", "-S", docker_guard.__file__]
        try:
            subprocess.run(
                [*command, str(self._dirs.root), self._engine.url, *config.own_labels(self._host)],
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
            said = failure.stderr.decode(errors="replace").strip()[-500:]
            raise Unavailable(
                f"no guard of the lease could be started: {said}", code="node_lease.no_guard"
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
        """Send SIGTERM through the init process to the whole group, after `grace_s` SIGKILL."""
        async with self._lock(key):  # not in the middle of a start
            info = await self._own(key)
        if info is None or config.seen(key, info).state != "running":
            return False
        if grace_s > 0:
            await self._engine.kill(info["Id"], "SIGTERM")
            if await self._engine.wait(info["Id"], grace_s):
                return False
        await self._engine.kill(info["Id"], "SIGKILL")
        if not await self._engine.wait(info["Id"], _DIE_S):
            raise Unavailable(f"{key} is still there {_DIE_S:.0f} s after SIGKILL", code="container.unkillable")
        return True

    async def run(self, key: Key, command: tuple[str, ...], timeout_s: float) -> int:
        """Run a command in the running container, as its user and with its environment."""
        info = await self._own(key)
        if info is None or config.seen(key, info).state != "running":
            raise KeyError(key)
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
        """Yield what the engine kept of stdout and stderr."""
        info = await self._own(key)
        if info is None:
            raise KeyError(key)
        try:
            async with contextlib.aclosing(self._engine.logs(info["Id"], follow=follow, tail=tail)) as payloads:
                async for payload in payloads:
                    yield payload
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
        if info is None or config.seen(key, info).state != "running":
            return None
        place = await asyncio.to_thread(cgroups.find, info["State"]["Pid"])
        if place is not None and info["Id"] in str(place.cpu):
            with contextlib.suppress(OSError, ValueError, KeyError):
                use = await asyncio.to_thread(cgroups.read, place)
                self._places[key] = place
                return use
        return config.use_of(await self._engine.stats(info["Id"]))

    def run_dir(self, key: Key) -> Path:
        """Return the private directory, mounted inside as /dorm/run."""
        return self._dirs.run_dir(key)

    async def hints(self) -> AsyncGenerator[None, None]:
        """Yield for each of the engine's events about our containers, and once after each connection."""
        delay = _RECONNECT_S[0]
        while not self._closed.is_set():
            try:
                async with contextlib.aclosing(self._engine.events(config.own_labels(self._host))) as events:
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
        info = await self._engine.inspect(config.container_name(self._host, key))
        if info is None:
            return None
        labels = info["Config"]["Labels"] or {}
        ours = all(f"{n}={labels.get(n)}" in config.own_labels(self._host) for n in config.OWN_LABELS)
        return info if ours else None


def _fault(name: str, message: str) -> Unavailable | Refused | Conflict:
    """Return the error for a failed start."""
    if config.trouble(message):
        return Unavailable(f"{name}: {message}")
    return config.refusal(message) or Conflict(f"{name}: {message}")


def _kill_inside(pid: int, container_id: str) -> None:
    """Kill an exec: the engine has no call for it.  Its pid is this machine's; its cgroup shows that it is the
    container's."""
    with contextlib.suppress(OSError):
        if pid > 1 and container_id in Path(f"/proc/{pid}/cgroup").read_text():
            os.kill(pid, signal.SIGKILL)
