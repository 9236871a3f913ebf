"""How a container starts on an engine: created, compared with the request, and started, once.

A kill or an outage may come between any two steps, so each call continues from the container's present state.  Before
the engine is told to start a container, a note with its id is written beside its private directory.  If the note exists
and the container has not started, the request of a dead agent may still be under way: so wait a little, and look again.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from agents.runtime import stopping
from agents.runtime.docker import checkpoints, config
from agents.runtime.docker import guard as docker_guard
from agents.runtime.docker.engine import Engine, Json, Rejected
from agents.runtime.interface import Conflict, Key, Refused, Seen, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from agents.runtime.interface import ContainerSpec
    from agents.runtime.run_dirs import RunDirs

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
        found = self._seen(spec.key, info)
        if found.state == "created":
            owner = host.profile.user_of(spec.tenant)
            for shared in (spec.checkpoint_dir, spec.outputs_dir):
                await self._dirs.work.run(spec.tenant, partial(checkpoints.give, shared, host.checkpoint_root, owner))
            found = await self._start(name, spec, files, wanted, info, host)
        elif config.never_ran(found):
            await self._discard(name, spec.key)
            raise _fault(name, found.error)
        return found

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
        folder = await asyncio.to_thread(checkpoints.find, spec.checkpoint_dir, host.checkpoint_root)
        outputs = await asyncio.to_thread(checkpoints.find, spec.outputs_dir, host.checkpoint_root)

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
            said = f"its folder cannot be written: {failure.strerror}"
            raise Unavailable(
                f"{key}: {said}", code="container.folder.not_writable", doing="create", said=said
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
