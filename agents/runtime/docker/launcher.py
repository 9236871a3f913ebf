"""How a container starts on an engine: created, compared with the request, and started, once.

A kill or an outage may come between any two steps, so each call continues from the container's present state.  Before
the engine has to start a container, a note with its id is written beside its private directory.  If the note
exists and the container has not started, the request of a dead agent may still be under way: so wait a little, and
look again.

Containers run as the tenant's user, and the checkpoint directory of an app is below the allowed root, and its tenant's
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from agents.runtime import stopping
from agents.runtime.docker import config
from agents.runtime.docker import guard as docker_guard
from agents.runtime.docker.engine import Engine, Json, Rejected
from agents.runtime.interface import Conflict, Key, Refused, Seen, Unavailable, WrongUser

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from agents.runtime.interface import ContainerSpec
    from agents.runtime.run_dirs import RunDirs


# --- the checkpoint directory -----------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
_DEEPEST = 100
"""Folders below this level keep their owner: each level takes a file descriptor of the agent's."""


def find(folder: str, root: Path | None) -> Path | None:
    """Return the real directory; None if `folder` is "".  Blocks.

    Raises `Refused` ("spec") if it is not a directory below the allowed root: a link that leads out of it would be an escape.
    """
    if not folder:
        return None
    if root is None:
        raise Refused("spec", "this node has no folder for checkpoints", code="container.checkpoints.missing")
    try:
        real = Path(folder).resolve(strict=True)
        inside = root.resolve(strict=True) in real.parents
    except (OSError, RuntimeError) as failure:
        raise Refused(
            "spec", f"the checkpoint directory cannot be used: {failure}", code="container.checkpoints.not_found"
        ) from failure
    if not real.is_dir() or not inside:
        raise Refused(
            "spec",
            f"the checkpoint directory {folder} is not a directory below {root}",
            code="container.checkpoints.outside",
        )
    return real


def give(folder: str, root: Path | None, owner: tuple[int, int]) -> Path | None:
    """Return the real directory, which is `owner`'s (uid, gid) from now on if this process is root.  Blocks.  Raises as `find`
    does."""
    real = find(folder, root)
    if real is not None and os.getuid() == 0:
        try:
            _give(real, owner)
        except OSError as failure:  # a network file system may not let root do that, and may not need it
            _log.warning(
                "the checkpoint directory keeps its owner; if containers cannot write there, let them run as that owner "
                "with --container-user",
                path=str(real),
                error=str(failure),
            )
    return real


def _give(folder: Path, owner: tuple[int, int]) -> None:
    """Give a directory and all that its last owner has in it to `owner`, and close it to others.

    The directory itself comes last, so that a crash before that repeats the rest.  No link is followed, and files of any other
    owner stay theirs: an app may have put links to them there.
    """
    status = folder.stat()
    before = status.st_uid
    if (before, status.st_gid) != owner:
        for path, folders, files, descriptor in os.fwalk(folder):
            for name in (*folders, *files):
                with contextlib.suppress(FileNotFoundError):
                    current = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if current.st_uid == before:
                        os.chown(name, *owner, dir_fd=descriptor, follow_symlinks=False)
            if path.count("/") - str(folder).count("/") > _DEEPEST:
                folders.clear()
        os.chown(folder, *owner, follow_symlinks=False)
    if status.st_mode & 0o077:
        folder.chmod(0o700)


# --- the user ---------------------------------------------------------------------------------------------------------


def container_user(user: str | None) -> tuple[int, int] | None:
    """Parse `uid:gid` into (uid, gid); None for the agent's own user, or if that is root, for one user per tenant.

    Raises WrongUser: a name would mean something else in every image, and only root can create (and later delete) files of
    another user.
    """
    if user is None:
        return (os.getuid(), os.getgid()) if os.getuid() != 0 else None
    uid, _, gid = user.partition(":")
    if not uid.isdecimal() or not (gid or uid).isdecimal():
        raise WrongUser(f"the containers' user must be UID:GID in numbers, not {user!r}")
    chosen = int(uid), int(gid or uid)
    if os.getuid() != 0 and chosen != (os.getuid(), os.getgid()):
        raise WrongUser(
            f"an agent that is not root gives containers its own user, {os.getuid()}:{os.getgid()}, only",
            code="config.user.not_root",
        )
    return chosen


# --- starts -----------------------------------------------------------------------------------------------------------

_SETTLE_S: Final = 0.5
_CREATE_TRIES: Final = 4


class NoImage(Exception):
    """The engine does not have the image."""


class Launcher:
    """Launches one node's containers; `seen` describes an inspected container."""

    def __init__(self, engine: Engine, dirs: RunDirs, seen: Callable[[Key, Json], Seen]) -> None:
        self._engine = engine
        self._dirs = dirs
        self._seen = seen
        self._commands: set[tuple[str, tuple[str, ...]]] = set()
        """Commands found in an image."""

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes], host: config.Host) -> Seen:
        """Create and start it unless it was started before.  The caller holds the container's lock.  Raises `NoImage`,
        `Refused`, `Conflict`, `Unavailable`."""
        name, wanted, info = await self._created(spec, host)
        seen = self._seen(spec.key, info)
        if seen.state == "created":
            owner = host.profile.user_of(spec.tenant)
            for shared in (spec.checkpoint_dir, spec.outputs_dir):
                await self._dirs.work.run(spec.tenant, partial(give, shared, host.checkpoint_root, owner))
            seen = await self._start(name, spec, files, wanted, info, host)
        elif config.never_ran(seen):
            await self._discard(name, spec.key)
            raise _fault(name, seen.error)
        return seen

    async def create(self, spec: ContainerSpec, host: config.Host) -> None:
        """Create it unless it is there, and look whether it can be started; as `ensure` otherwise.  The checkpoints keep their
        owner: containers of the previous generation still write there, under an earlier release as another user."""
        name, _, info = await self._created(spec, host)
        if self._seen(spec.key, info).state == "created":
            await self._check_command(name, spec.key, info)

    async def _created(self, spec: ContainerSpec, host: config.Host) -> tuple[str, Json, Json]:
        """Return its name, the request to the engine, and the container that the engine made."""
        name = config.container_name(host, spec.key)
        owner = host.profile.user_of(spec.tenant)
        info = await self._engine.inspect(name)
        folder = await asyncio.to_thread(find, spec.checkpoint_dir, host.checkpoint_root)
        outputs = await asyncio.to_thread(find, spec.outputs_dir, host.checkpoint_root)

        def request() -> Json:
            run_dir, work_dirs = self._dirs.run_dir(spec.key), self._dirs.work_dirs(spec.key)
            return config.container_config(host, spec, run_dir, folder, outputs, work_dirs)

        wanted = request()
        ours = info is not None and info["Config"]["Labels"] == {**info["Config"]["Labels"], **wanted["Labels"]}
        if info is not None and ours and self._is_outdated(spec.key, info, wanted, host):
            await self._discard(name, spec.key)
            info, wanted = None, request()  # its folders were perhaps where an earlier release had them
        if info is None:
            await self._make_dir(spec, owner)
            try:
                info = await self._create(name, wanted)
            except (Refused, NoImage):
                await asyncio.to_thread(self._dirs.remove, spec.key)
                raise
        if info["Config"]["Labels"] != {**info["Config"]["Labels"], **wanted["Labels"]}:
            raise Conflict(
                f"{name} is another container: its labels are {info['Config']['Labels']}",
                code="container.name.taken",
            )
        return name, wanted, info

    def _is_outdated(self, key: Key, info: Json, wanted: Json, host: config.Host) -> bool:
        """Return whether it was created under another configuration of the node, or by an earlier release, and was
        never started."""
        if (
            config.seen(key, info).state != "created"
            or (self._dirs.container_dir(key) / docker_guard.STARTING).exists()
        ):
            return False
        return bool(config.differences(wanted, info, swap_limit=host.swap_limit))

    async def _make_dir(self, spec: ContainerSpec, owner: tuple[int, int]) -> None:
        def fill(new: Path) -> None:
            (new / stopping.FILE).write_text(spec.stop)

        make = partial(
            self._dirs.make, spec.key, fill, files=spec.files, owner=owner, workdir=spec.workdir, tenant=spec.tenant
        )
        await self._on_disk(spec.key, self._dirs.work.run(spec.tenant, make))

    async def _on_disk(self, key: Key, work: Awaitable[object]) -> None:
        """Wait for `work`.  Raises `Unavailable` if the node's disk refuses the write."""
        try:
            await work
        except OSError as failure:
            reason = f"its folder cannot be written: {failure.strerror}"
            raise Unavailable(
                f"{key}: {reason}", code="container.folder.not_writable", doing="create", said=reason
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
                    raise NoImage(answer.message) from answer
                if answer.status == 400 and config.trouble(answer.message):
                    raise Unavailable(
                        f"create {name}: {answer.message}", doing="create", said=answer.message
                    ) from answer
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

    async def _start(
        self, name: str, spec: ContainerSpec, files: Mapping[str, bytes], wanted: Json, info: Json, host: config.Host
    ) -> Seen:
        key = spec.key
        await self._make_dir(spec, host.profile.user_of(spec.tenant))
        await self._dirs.put_files(key, files)
        if differences := config.differences(wanted, info, swap_limit=host.swap_limit):
            await self._discard(name, key)
            raise Refused(
                "spec", f"the engine made the container differently: {'; '.join(differences)}", code="container.differs"
            )
        await self._check_command(name, key, info)
        note = self._dirs.container_dir(key) / docker_guard.STARTING
        if await asyncio.to_thread(note.exists):
            await asyncio.sleep(_SETTLE_S)
            again = await self._engine.inspect(name)
            if again is not None and config.seen(key, again).state != "created":
                return config.seen(key, again)
        await self._on_disk(key, asyncio.to_thread(note.write_text, info["Id"]))
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


def _fault(name: str, message: str) -> Unavailable | Refused | Conflict:
    """Return the error for a failed start."""
    if config.trouble(message):
        return Unavailable(f"{name}: {message}", doing="start", said=message)
    return config.refusal(message) or Conflict(f"{name}: {message}")
