"""The process runtime: a container is a child process with its own session and working directory.

For machines without Docker.  It serves one tenant, the one it is given or else the first whose app it runs, unless the
operator trusts all apps (`trust_apps`), because it confines nothing and limits nothing (`limits` is False, and it logs that
when it is opened): processes share the user, the file system and the machine with the agent, and a memory shortage looks like
any other SIGKILL.
It does keep the runtime's promises: a program starts at most once for a key, it outlives the agent, and a restarted agent
finds it again with its state and exit code.  One small supervisor for each container (`agents.runtime.process.supervisor`)
and its records (`agents.runtime.process.records`) ensure this.  The supervisors also enforce the node's lease, and no program
outlives its supervisor.

A program's PATH starts with the folder of the Python that its app names by a path (`DORM_PYTHON`), else with that of the
agent's own interpreter, so `python3` is that one, with its packages.  Do not run the agent under an init system that kills its
whole control group with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet, WeakValueDictionary

import msgspec
import structlog

from agents import lease
from agents.runtime import interface, stopping
from agents.runtime.interface import (
    NOT_FOUND,
    PROGRESS_FILE,
    TIMED_OUT,
    Conflict,
    ContainerSpec,
    Displaced,
    Key,
    Refused,
    Seen,
    Unavailable,
    Use,
    Wanted,
    check_spec,
    spec_hash,
)
from agents.runtime.long_work import Inflight
from agents.runtime.process import attributes, records, short_paths
from agents.runtime.process.execution import ProcessExecution, processes
from agents.runtime.process.logs import read_log
from agents.runtime.run_dirs import RUN, RunDirs
from events.requests import plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from agents.runtime.interface import Command
    from agents.runtime.workdir import BlobCache
    from events.requests import LogPiece

log = structlog.get_logger(__name__)

LOG_CAP: Final = 16 * 1024 * 1024
"""Bytes of a container's log before it moves aside; at most two such parts are kept."""
_DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUPERVISOR: Final = str(Path(__file__).with_name("supervisor.py"))
_START_S: Final = 30.0
_DIE_S: Final = 30.0
"""Seconds after SIGKILL that a process may remain (for example in the kernel, on a dead disk) before its state is unknown."""
_BUSY_POLL_S: Final = 0.01
_OF_THE_NODE: Final = tuple(
    os.strerror(number)
    for number in (
        errno.EAGAIN,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.EIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
    )
)
"""Messages of the machine when a program can't be started for want of something that the machine lacks."""
_KEEP_S: Final = 600.0
"""Seconds between looks at the short paths, which a program that cleans /tmp may remove."""


class ProcessRuntime:
    """One node's containers as processes below `root`, a folder that no other node uses."""

    name = "process"
    limits = False
    checkpoint_mount = ""
    outputs_mount = ""
    mounts = False

    def __init__(
        self, node: str, root: Path, *, log_cap: int = LOG_CAP, trust_apps: bool = False, tenant: str = ""
    ) -> None:
        """`trust_apps`: whether it runs apps of several tenants, who could read each other's files.  `tenant`: the
        tenant that it serves otherwise; "" for the first whose app it runs."""
        self.node = node
        self._tenant = tenant
        self._trust_apps = trust_apps
        self._first = ""
        """The first tenant that came, "" as long as none has."""
        self._served = asyncio.Lock()
        self._dirs = RunDirs(root)
        self._short = short_paths.ShortPaths(self._dirs)
        self._kept = 0.0
        """Time of the last look at the short paths, by the loop's clock."""
        self._log_cap = log_cap
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._inflight = Inflight()
        self._watched: dict[Key, int] = {}
        self._wakes: set[asyncio.Event] = set()
        self._executions: dict[Key, WeakSet[ProcessExecution]] = {}
        """Commands that people run in containers."""
        self._named: set[tuple[Key, str]] = set()
        """Damaged records that the log has named."""
        self._open = False

    @property
    def blobs(self) -> BlobCache:
        """The parts of shipped folders."""
        return self._dirs.blobs

    @property
    def serves(self) -> str:
        """The tenant that it was given, or the first one that came."""
        return "" if self._trust_apps else self._tenant or self._first

    @property
    def engine_folder(self) -> Path | None:
        """None: there is no engine in addition to the node's own folder."""
        return None

    def owner_of(self, tenant: str) -> tuple[int, int] | None:
        """Return None: processes run as the agent does."""
        return None

    async def open(self) -> None:
        """Lock the root and watch running containers.  Raises `Conflict` if another agent has it."""
        await asyncio.to_thread(self._dirs.open)
        await asyncio.to_thread(self._short.open)
        self._first = await asyncio.to_thread(self._dirs.served)
        self._kept = asyncio.get_running_loop().time()
        with contextlib.suppress(RuntimeError):  # The machine has no thread left; the next agent removes them.
            threading.Thread(target=short_paths.remove_abandoned, name="remains", daemon=True).start()
        self._open = True
        log.info("the process runtime limits nothing: use it only for apps that you trust", node=self.node)
        for container in await asyncio.to_thread(self._look_all):
            self._watch(container)

    async def close(self) -> None:
        """Release the root; the processes keep running."""
        self._open = False
        self._wake()
        await self._inflight.drain()
        for key in list(self._watched):
            self._unwatch(key)
        await asyncio.to_thread(self._release)
        self._dirs.close()

    def _release(self) -> None:
        used = True
        with contextlib.suppress(Displaced, OSError):
            used = any(container.seen.state == "running" or container.supervisor for container in self._look_all())
        self._short.close(used=used)

    async def list(self) -> list[Seen]:
        """Return all containers below the root, sorted by key, and those whose folder was removed and that have not ended
        yet: a supervisor takes a moment to notice that."""
        seen = [container.seen for container in await asyncio.to_thread(self._look_all)]
        there = {state.key for state in seen}
        unseen = tuple(key for key, process in self._watched.items() if key not in there and not _has_ended(process))
        if unseen:
            seen += await asyncio.to_thread(self._without_folder, unseen)
        return sorted(seen, key=lambda state: state.key)

    def _without_folder(self, keys: tuple[Key, ...]) -> tuple[Seen, ...]:
        """Return those without a folder; the others were started after all folders were read."""
        return tuple(Seen(key, "running", "") for key in keys if not self._dirs.container_dir(key).exists())

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        """Start it unless it was started before.  Raises `Refused`, `Conflict` or `Unavailable`."""
        check_spec(spec)
        await self._check_tenant(spec)
        await self._check_python(spec)
        return await self._inflight.run(self._ensure(spec, files or {}))

    async def prepare(self, spec: ContainerSpec) -> None:
        """Make its folder.  Raises `Refused`, `Conflict` or `Unavailable`."""
        check_spec(spec)
        await self._check_tenant(spec)
        await self._check_python(spec)
        await self._inflight.run(self._create(spec, spec_hash(spec)))

    async def _check_tenant(self, spec: ContainerSpec) -> None:
        """Refuse apps of a second tenant, which could read the files of the first.  Files of the first tenant stay
        readable, so the node does not serve another one after its containers have ended."""
        if self._trust_apps or not spec.tenant:
            return
        try:
            async with self._served:
                served = self._tenant or await asyncio.to_thread(self._dirs.serve, spec.tenant)
                self._first = served
        except OSError as failure:
            raise Unavailable(
                f"the node's tenant cannot be read or noted: {failure.strerror}", code="container.folder.not_writable"
            ) from failure
        if not served:
            raise Unavailable(
                f"node {self.node} runs plain processes of one tenant, and the record of which one is damaged: write its name "
                f"into {self._dirs.root / 'tenant'}, or remove that file to serve another",
                code="container.record.damaged",
            )
        if served != spec.tenant:
            instead = "" if self._tenant else f"; to serve {spec.tenant} instead, remove {self._dirs.root / 'tenant'}"
            raise Refused(
                "spec",
                f"node {self.node} runs plain processes, which can read each other's files, and serves {served} only: use "
                f"Docker there, or trust all apps with --trust-apps{instead}",
                code="container.tenant.not_served",
            )

    async def _check_python(self, spec: ContainerSpec) -> None:
        """Raises `Refused` if the app names a Python that this machine does not have."""
        python = spec.env.get(records.PYTHON, "")
        if python and not await asyncio.to_thread(os.access, python, os.X_OK):
            raise Refused(
                "command",
                f"node {self.node} has no Python at {python}: name another one in `python`, such as '3.12' (`dorm nodes -o "
                "wide`), or leave it out for the node's own",
                code="container.python.not_found",
            )

    async def _create(self, spec: ContainerSpec, wanted: str) -> None:
        key = spec.key
        async with self._lock(key):
            await self._make(spec, wanted)
            container = await self._look_for(key, wanted)
        if container is None:
            raise Conflict(f"{key} exists with another spec", code="container.name.taken")

    async def _make(self, spec: ContainerSpec, wanted: str) -> None:
        try:
            await self._dirs.work.run(spec.tenant, lambda: self._prepare(spec, wanted))
        except OSError as failure:
            reason = f"its folder cannot be made: {failure.strerror}"
            raise Unavailable(
                f"{spec.key}: {reason}", code="container.folder.not_writable", doing="create", said=reason
            ) from failure

    async def _ensure(self, spec: ContainerSpec, files: Mapping[str, bytes]) -> Seen:
        key, wanted = spec.key, spec_hash(spec)
        async with self._lock(key):
            await self._make(spec, wanted)
            give_up = asyncio.get_running_loop().time() + _START_S
            while True:
                container = await self._look_for(key, wanted)
                if container is None:
                    raise Conflict(f"{key} was removed while it was started", code="container.removed")
                if container.seen.error:
                    await asyncio.to_thread(self._delete, key)
                    if container.seen.error.endswith(_OF_THE_NODE):
                        reason = container.seen.error
                        raise Unavailable(
                            f"{key}: {reason}", code="container.supervisor.failed", doing="start", said=reason
                        )
                    raise Refused("command", container.seen.error, code="container.command.not_found")
                if container.seen.state != "created":
                    self._watch(container)
                    self._wake()
                    return container.seen
                if asyncio.get_running_loop().time() > give_up:
                    reason = f"it did not start within {_START_S:.0f} s"
                    raise Unavailable(f"{key}: {reason}", code="container.no_start", doing="start", said=reason)
                if container.supervisor:  # started by an earlier agent
                    await asyncio.sleep(_BUSY_POLL_S)
                elif spec.checkpoint_dir and not await asyncio.to_thread(Path(spec.checkpoint_dir).is_dir):
                    raise Refused(
                        "spec",
                        f"the checkpoint directory {spec.checkpoint_dir} is not there",
                        code="container.checkpoints.not_found",
                    )
                elif not await asyncio.to_thread(self._short.works, self._dirs.container_dir(key)):
                    await asyncio.to_thread(self._delete, key)
                    raise Unavailable(f"{key} has no short path: it is made again", code="container.removed")
                else:
                    await self._dirs.put_files(key, files)
                    await self._dirs.check_lease()
                    await asyncio.to_thread(self._supervise, key)

    async def _look_for(self, key: Key, wanted: str) -> records.Found | None:
        """Return the container of a spec with this hash, None if there is none.  If its own is not known, its key names it.
        Raises `Conflict` if it is another's, `Unavailable` if it never ran and must be made again, since its records are
        damaged."""
        container = await asyncio.to_thread(self._look, key)
        if container is None:
            return None
        if container.seen.state == "created" and not container.supervisor:
            folder = self._dirs.container_dir(key)
            if "hash" in container.damaged or await asyncio.to_thread(records.is_launch_damaged, folder):
                log.warning("a container that never ran has damaged records and is made again", key=key)
                await asyncio.to_thread(self._delete, key)
                raise Unavailable(f"{key} has damaged records: it is made again", code="container.removed")
        if container.seen.spec_hash != wanted and "hash" not in container.damaged:
            raise Conflict(f"{key} exists with another spec", code="container.name.taken")
        return container

    def _prepare(self, spec: ContainerSpec, wanted: str) -> None:
        folder = self._dirs.container_dir(spec.key)
        if folder.is_dir():
            return
        run, short, made = self._dirs.run_dir(spec.key), self._short.make(folder), False
        variables = records.environment(
            spec,
            {
                **records.of_machine(),
                "PATH": _DEFAULT_PATH,
                "HOME": str(short / RUN),
                "LANG": "C.UTF-8",
                "TMPDIR": str(short / "tmp"),
            },
            {
                "PATH": str(Path(sys.executable).parent),
                "DORM_PROGRESS": str(run / PROGRESS_FILE),
                # Nothing keeps a process from a GPU, but CUDA shows it only these; an app that demanded none sees none.
                "CUDA_VISIBLE_DEVICES": ",".join(spec.devices),
            },
        )

        def fill(new: Path) -> None:
            (new / "tmp").mkdir(mode=0o700)
            (new / stopping.FILE).write_text(spec.stop)
            short_paths.note(new, short)
            records.write_launch(new, records.Launch(str(begins), spec.command, variables), self._log_cap, wanted)
            records.put(new, spec.mounts, mounting=records.may_mount())

        begins = self._dirs.work_dirs(spec.key)[-1] if spec.workdir else run
        try:
            made = self._dirs.make(spec.key, fill, files=spec.files, workdir=spec.workdir, tenant=spec.tenant)
        finally:
            if not made:
                self._short.remove(short)

    def _delete(self, key: Key) -> None:
        short = short_paths.recorded(self._dirs.container_dir(key))
        self._dirs.remove(key)
        self._short.remove(short)

    def _supervise(self, key: Key) -> None:
        """Start a supervisor; return when it has started the program, has left it to another one, or has found that the lease
        has expired."""
        folder = self._dirs.container_dir(key)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", _SUPERVISOR, str(folder)],
                env={"LANG": "C.UTF-8"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
                timeout=_START_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as failure:
            reason = f"no supervisor could be started: {failure}"
            raise Unavailable(
                f"{key}: {reason}", code="container.supervisor.failed", doing="start", said=reason
            ) from failure
        if not done.stdout:
            notes = folder / "supervisor.log"
            text = notes.read_text(errors="replace") if notes.exists() else done.stderr.decode(errors="replace")
            reason = f"its supervisor failed: {_last_line(text)}"
            raise Unavailable(f"{key}: {reason}", code="container.supervisor.failed", doing="start", said=reason)

    async def extend_lease(self, seconds: float) -> None:
        """Extend the lease.  The supervisors enforce it: each reads the record about once a second."""
        # Computed before any wait, so that an agent that is paused in between extends nothing late.
        await self._dirs.extend_lease(lease.after(seconds))
        if (now := asyncio.get_running_loop().time()) > self._kept + _KEEP_S:
            self._kept = now
            self._inflight.start(asyncio.to_thread(self._short.keep))

    async def lease_left(self) -> float | None:
        """Read the lease from the record in the root."""
        return await self._dirs.lease_left()

    async def root_id(self) -> str:
        """Return the id drawn when the root was created."""
        return await asyncio.to_thread(self._dirs.identity)

    async def stop(self, key: Key, grace_s: float) -> bool:
        """Let its supervisor ask it, after `grace_s` SIGKILL to everything that it started."""
        loop = asyncio.get_running_loop()
        async with self._lock(key):  # not in the middle of a start
            container = await asyncio.to_thread(self._look, key)
        kill_at = loop.time() + grace_s
        sent: tuple[bool, int] | None = None
        while container is not None and container.seen.state == "running":
            kill, pid = loop.time() >= kill_at, container.supervisor or container.program
            if loop.time() >= kill_at + _DIE_S:
                reason = f"it is still there {_DIE_S:.0f} s after SIGKILL"
                raise Unavailable(f"{key}: {reason}", code="container.unkillable", doing="stop", said=reason)
            folder = self._dirs.container_dir(key)
            if sent != (kill, pid):
                await asyncio.to_thread(records.send, folder, container, kill=kill)
                sent = kill, pid
            await self._gone(folder, container, until=kill_at + _DIE_S if kill else kill_at)
            container = await asyncio.to_thread(self._look, key)
        return sent is not None and sent[0]

    async def run(self, key: Key, command: tuple[str, ...], timeout_s: float) -> int:
        """Run a command as the container's program would; its output goes to the container's log."""
        container = await asyncio.to_thread(self._look, key)
        if container is None or container.seen.state != "running":
            raise KeyError(key)
        folder = self._dirs.container_dir(key)
        await asyncio.to_thread(records.read_launch, folder)
        with (folder / "log").open("ab") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", attributes.__file__, str(folder)),
                    *records.inside(folder, container.program, command),
                    env={"LANG": "C.UTF-8"},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as failure:
                log.warning("no command can be started", key=key, command=command[0], error=str(failure))
                return NOT_FOUND
        command_ends = asyncio.ensure_future(process.wait())
        container_ends = asyncio.ensure_future(self._gone(folder, container, until=None))
        try:
            await asyncio.wait((command_ends, container_ends), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not command_ends.done() and not container_ends.done()
        finally:
            container_ends.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its leftovers too
            await asyncio.wait((command_ends, container_ends))
        code = process.returncode or 0
        if code == NOT_FOUND:
            log.warning("no such command", key=key, command=command[0])
        return TIMED_OUT if timed_out else code if code >= 0 else 128 - code

    async def variables(self, key: Key) -> dict[str, str]:
        """Read its records."""
        container = await asyncio.to_thread(self._look, key)
        if container is None or container.seen.state != "running":
            raise KeyError(key)
        return (await asyncio.to_thread(records.read_launch, self._dirs.container_dir(key))).environment

    async def runs(self, key: Key) -> bool:
        """Read its records."""
        container = await asyncio.to_thread(self._look, key)
        return container is not None and container.seen.state == "running"

    async def execute(self, key: Key, command: Command) -> ProcessExecution:
        """Run a command next to its program, under a keeper."""
        container = await asyncio.to_thread(self._look, key)
        folder = self._dirs.container_dir(key)
        descriptor = records.open_process(folder, container) if container is not None else None
        if container is None or container.seen.state != "running" or descriptor is None:
            raise KeyError(key)
        try:
            await asyncio.to_thread(records.read_launch, folder)
            inner = records.inside(folder, container.program, command.words)
            made = await ProcessExecution.start(folder, descriptor, msgspec.structs.replace(command, words=inner))
        finally:
            os.close(descriptor)
        self._executions.setdefault(key, WeakSet()).add(made)
        return made

    async def listener(self, key: Key, port: int) -> interface.Listener | None:
        """Look among its processes, and those of its sessions."""
        container = await asyncio.to_thread(self._look, key)
        if container is None or container.seen.state != "running":
            raise KeyError(key)
        tops = [
            container.supervisor or container.program,
            *(execution.keeper for execution in self._executions.get(key, ())),
        ]
        return await asyncio.to_thread(lambda: interface.find(processes(tops), port))

    async def remove(self, key: Key) -> None:
        """Delete its folder.  Raises `Conflict` if it runs."""
        async with self._lock(key):
            container = await asyncio.to_thread(self._look, key)
            if container is None:
                return
            if container.seen.state == "running" or container.supervisor:
                raise Conflict(f"{key} still runs: stop it first", code="container.running")
            self._unwatch(key)
            self._executions.pop(key, None)
            self._named = {name for name in self._named if name[0] != key}
            await asyncio.to_thread(self._delete, key)

    async def logs(self, key: Key, *, follow: bool, tail: int | None) -> AsyncGenerator[bytes, None]:
        """Yield its log, as written."""
        async with contextlib.aclosing(self.timed_logs(key, Wanted(follow=follow, tail=tail))) as pieces:
            async for piece in pieces:
                yield plain(piece)

    async def timed_logs(self, key: Key, wanted: Wanted) -> AsyncGenerator[LogPiece, None]:
        """Yield its log, with the times that its supervisor has noted."""

        def running() -> bool:
            container = self._look(key)
            return container is not None and container.seen.state == "running"

        folder = self._dirs.container_dir(key)
        if not folder.is_dir():
            raise KeyError(key)
        async with contextlib.aclosing(read_log(folder, wanted, running)) as pieces:
            async for piece in pieces:
                yield piece

    async def use(self, key: Key) -> Use | None:
        """Return sums over its processes."""
        container = await asyncio.to_thread(self._look, key)
        if container is None or container.seen.state != "running":
            return None
        return await asyncio.to_thread(records.use_of, container)

    def run_dir(self, key: Key) -> Path:
        """Return its working directory."""
        return self._dirs.run_dir(key)

    def run_mount(self, key: Key) -> str:
        """Return its working directory."""
        return str(self._dirs.run_dir(key))

    async def put(self, key: Key, name: str, content: bytes) -> None:
        """Replace a file in its working directory."""
        await self._dirs.put_file(key, name, content)

    async def hints(self) -> AsyncGenerator[None, None]:
        """Yield when a container starts or ends."""
        wake = asyncio.Event()
        wake.set()
        self._wakes.add(wake)
        try:
            while self._open:
                await wake.wait()
                wake.clear()
                if self._open:
                    yield None
        finally:
            self._wakes.discard(wake)

    def _wake(self) -> None:
        for wake in self._wakes:
            wake.set()

    def _lock(self, key: Key) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _look(self, key: Key) -> records.Found | None:
        container = records.look(self._dirs.container_dir(key), key)
        if container is not None:
            for name in container.damaged:
                if (key, name) not in self._named:
                    self._named.add((key, name))
                    log.error(
                        "a record of a container is damaged, so what it says is not known",
                        node=self.node, key=key, file=str(self._dirs.container_dir(key) / name),
                    )  # fmt: skip
        return container

    def _look_all(self) -> tuple[records.Found, ...]:
        looked = (self._look(key) for key in self._dirs.container_keys())
        return tuple(container for container in looked if container is not None)

    def _watch(self, container: records.Found) -> None:
        """Wake the hints when it ends; repeatedly for an orphan, until its end is seen."""
        key = container.seen.key
        if container.seen.state != "running" or key in self._watched or not self._open:
            return
        descriptor = records.open_process(self._dirs.container_dir(key), container)
        if descriptor is None:
            self._wake()
            return
        self._watched[key] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._ended, key)

    def _ended(self, key: Key) -> None:
        self._unwatch(key)
        self._wake()
        self._inflight.start(self._watch_on(key))

    async def _watch_on(self, key: Key) -> None:
        """Watch it again if it still runs: its supervisor may have been killed."""
        container = await asyncio.to_thread(self._look, key)
        if container is not None:
            self._watch(container)

    def _unwatch(self, key: Key) -> None:
        descriptor = self._watched.pop(key, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    async def _gone(self, folder: Path, container: records.Found, *, until: float | None) -> None:
        """Wait for the end of its supervisor (or of an orphan), at most until this loop time."""
        descriptor = records.open_process(
            folder, container
        )  # two system calls: no thread, whose result a cancellation could lose
        if descriptor is None:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(descriptor, gone.set)
        try:
            async with asyncio.timeout_at(until):
                await gone.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


def _last_line(text: str) -> str:
    """Return the end of a program's output, as one line: of a traceback, the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-500:] if lines else "it said nothing"


def _has_ended(process: int) -> bool:
    """Return whether the process of this pidfd has ended; the pidfd is readable once it has."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))
