"""An app's environment: Python packages and the results of its `setup`, built once on each node and used by all starts.

The build runs in the container itself (`agents.environment_builder`), never in the agent: it is confined like the app,
ends with it, and its output is in the app's logs.  A container that still builds does not count as started.

*The plan.*  Equal requirements, commands and interpreters of one owner share an environment. Apps of different owners
never do, because the builder decides its content.

*The cache* is a folder for each environment, below the node's own, until they take too much room.

    FOLDER/KEY/       made by the agent, filled by a container (`environment_builder`), which owns it

One that a container uses holds a lock on it, so it is never removed.  Of the others, those of the largest owner go
first, the longest unused ones before others.  So no owner's builds push out those of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from agents import environment_builder
from agents.environment_builder import READY, SEARCHED
from agents.runtime.interface import ENVIRONMENT_MOUNT, Mount, Unavailable
from agents.runtime.long_work import LongWork, Remains
from agents.runtime.removing import delete, taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agents.runtime.interface import Key
    from events.spec import AppSpec


# --- the plan ---------------------------------------------------------------------------------------------------------

PROGRAM: Final = "dorm-environment.py"
_SOURCE: Final = Path(environment_builder.__file__).read_text()
"""The builder's source, read once when the agent starts."""


class Environment(msgspec.Struct, frozen=True):
    """One environment on one node."""

    key: str
    """Hex: a hash of everything that it is built from."""
    source: str
    """Its folder on the node."""
    target: str
    """Path of that folder in its containers."""
    site_packages: bool
    """Whether it sees the packages of the interpreter that it is made with, as in an image that has PyTorch."""


def is_bare(spec: AppSpec) -> bool:
    """Return whether a spec only names the path of a Python, so that nothing has to be built where that is a path of the
    node."""
    return spec.needs_environment and not spec.builds


def key_of(spec: AppSpec, owner: str, base: str) -> str:
    """Return the key of a spec's environment, "" if it needs none. `base` names its base: an image, or
    the node's own interpreter."""
    if not spec.needs_environment:
        return ""
    parts = (spec.requirements, spec.setup, spec.python, owner, base)
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).hexdigest()


def variables(environment: Environment | None) -> Mapping[str, str]:
    """Return Dorm's own variables that the builder sets."""
    return {} if environment is None else {"DORM_ENVIRONMENT": f"{environment.target}/venv"}


def mounts(environment: Environment | None) -> tuple[Mount, ...]:
    """Return how a container sees its environment, if that has its own path there."""
    if environment is None or environment.source == environment.target:
        return ()
    return (Mount("environment", environment.source, environment.target, read_only=False),)


def wrapped(command: tuple[str, ...], environment: Environment | None, folder: str) -> tuple[str, ...]:
    """Return a container's command, which builds the environment first.  `folder` is the container's private one."""
    if environment is None:
        return command
    return ("python3", f"{folder}/{PROGRAM}", environment.target, *command)


def inside(command: tuple[str, ...], environment: Environment | None, folder: str) -> tuple[str, ...]:
    """Return a command that is run in a container whose environment is built."""
    if environment is None:
        return command
    return ("python3", f"{folder}/{PROGRAM}", environment.target, "--inside", *command)


def files(spec: AppSpec, environment: Environment | None, generation: str) -> Mapping[str, str]:
    """Return the files that the builder needs in a container's private folder; `generation` names the generation."""
    if environment is None:
        return {}
    plan = {
        "key": environment.key,
        "generation": generation,
        "requirements": spec.requirements,
        "setup": spec.setup,
        "python": spec.python,
        "site_packages": environment.site_packages,
    }
    return {PROGRAM: _SOURCE, environment_builder.PLAN: msgspec.json.encode(plan).decode()}


# --- Pythons of plain processes ---------------------------------------------------------------------------------------

_NAME = re.compile(r"python(3\.[0-9]{1,2})")


def detect_pythons() -> tuple[str, ...]:
    """Return the versions that a process would find as a program such as `python3.12`, ascending. Blocks."""
    versions = set()
    for folder in (Path(sys.executable).parent, *map(Path, SEARCHED.split(":"))):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        versions |= {
            match[1] for name in names if (match := _NAME.fullmatch(name)) and os.access(folder / name, os.X_OK)
        }
    return tuple(sorted(versions, key=lambda version: int(version[2:])))


# --- the cache --------------------------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
MOST_BYTES: Final = 32 * 1024**3
"""Most bytes of all unused environments of a node together."""
MOST: Final = 64
"""Environments that are kept."""
_AHEAD_S: Final = 60.0
"""Seconds by which a file's time may be ahead of the agent's clock."""
_BASE = f"{sys.version_info.major}.{sys.version_info.minor} {sys.base_prefix}"


class Environments:
    """The environments of one node below `root`.  `mounted`: whether containers see them at a path of their own, and bring
    their own interpreter."""

    def __init__(self, root: Path, *, mounted: bool, most_bytes: int = MOST_BYTES, most: int = MOST) -> None:
        self.root = root
        self._mounted = mounted
        self._most_bytes = most_bytes
        self._most = most
        self._sizes: dict[str, int] = {}
        self._work = LongWork("environments")
        self._remains = Remains(delete)

    def of(self, spec: AppSpec, owner: str) -> Environment | None:
        """Return the environment of an app's containers, None if it needs none."""
        if not spec.needs_environment or (not self._mounted and is_bare(spec)):
            return None
        on_another = spec.python.startswith("/")
        base = spec.image if self._mounted else f"on {spec.python}" if on_another else _BASE
        key = key_of(spec, owner, base)
        source = str(self.root / key)
        return Environment(key, source, ENVIRONMENT_MOUNT if self._mounted else source, site_packages=self._mounted)

    async def have(self, environment: Environment | None, tenant: str, owner: tuple[int, int] | None) -> None:
        """Create the folder of a tenant's environment, owned by `owner` (uid, gid; None for the agent's own user), and
        remove others if there are too many. Raises Unavailable."""
        if environment is None:
            return
        try:
            await self._work.run(tenant, partial(self._have, environment.key, owner))
        except OSError as error:
            raise Unavailable(
                f"the environments' folder {self.root} cannot be written: {error.strerror}",
                code="environment.folder.not_writable",
            ) from error

    def _have(self, key: str, owner: tuple[int, int] | None) -> None:
        folder = self.root / key
        self._sizes.pop(key, None)  # Its containers may write to it.
        if folder.is_dir():
            return
        self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.collect()
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if owner is not None and owner != (os.getuid(), os.getgid()):
                os.chown(folder, *owner)

    def collect(self) -> list[str]:
        """Remove environments that are not in use until the rest is within the bounds; return their keys.  Each time the one
        goes that its owner has not used for longest, of the owner who has most.  Blocks."""
        self.remove_remains()
        of: dict[int, list[Path]] = {}
        for folder in sorted(self.root.glob("[!.]*"), key=_used_at, reverse=True):
            of.setdefault(_owner_of(folder), []).append(folder)
        sizes = {folder: self._size(folder) for folders in of.values() for folder in folders}
        has = {owner: (sum(sizes[folder] for folder in folders), len(folders)) for owner, folders in of.items()}
        removed = []
        while any(of.values()):
            size, count = (sum(item[place] for item in has.values()) for place in (0, 1))
            if size <= self._most_bytes and count <= self._most:
                break
            place = 0 if size > self._most_bytes else 1
            owner = max((item for item in of if of[item]), key=lambda item: has[item][place])
            folder = of[owner].pop()
            if self._remove(folder):
                has[owner] = has[owner][0] - sizes[folder], has[owner][1] - 1
                removed.append(folder.name)
                self._sizes.pop(folder.name, None)
        if removed:
            _log.info("environments are removed", folder=str(self.root), keys=removed)
        return removed

    def remove_remains(self) -> None:
        """Remove what an earlier removal left, at some time; what stays is named in the log."""
        for left in self.root.glob(".*"):
            self._remains.put(left)

    def _size(self, folder: Path) -> int:
        """Return the bytes of one, measured once if it is built and no container can write to it; an environment that
        cannot be measured counts as larger than all together may be."""
        if folder.name in self._sizes:
            return self._sizes[folder.name]
        last = deque(taken([folder]), maxlen=1)
        size = last[0].size if last else 0
        if last and last[0].too_deep:
            size = self._most_bytes + 1
        with _held(folder) as unused:
            if unused and os.path.lexists(folder / "ready"):  # One that is about to be built holds no lock yet.
                self._sizes[folder.name] = size
        return size

    def _remove(self, folder: Path) -> bool:
        """Remove an environment that no container uses; return whether that is so.  It is renamed first, so that none
        begins to use it."""
        gone = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
        try:
            with _held(folder) as unused:
                if not unused:
                    return False
                folder.rename(gone)
        except OSError:
            return False
        self._remains.put(gone)
        return True


def _owner_of(folder: Path) -> int:
    """Return the user of an environment's containers: each tenant has one, if containers are confined."""
    with contextlib.suppress(OSError):
        return folder.stat(follow_symlinks=False).st_uid
    return -1


def _used_at(folder: Path) -> float:
    """Return when an environment was used last.  Its containers may give files any time: one that is still to come is that of
    none."""
    for path in (folder / "ready", folder):
        with contextlib.suppress(OSError):
            used = path.stat(follow_symlinks=False).st_mtime
            return used if used <= time.time() + _AHEAD_S else 0.0
    return 0.0


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold an environment meanwhile; yield whether no container uses it.  Without a lock, or if containers have
    replaced it, no container uses it."""
    with contextlib.ExitStack() as held:
        try:
            lock = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield error.errno in _NO_LOCK
            return
        yield True


_NO_LOCK = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.ENOTDIR)


# --- what containers have built ---------------------------------------------------------------------------------------

_LOOK_S = 0.2
_FEW = 16
"""Containers that are looked at as often as that."""
_LONGEST_S = 1e6


class Building:
    """The containers of a node that build their environments; `woken` is called when one has done so, or was removed."""

    def __init__(self, woken: Callable[[], None]) -> None:
        self._woken = woken
        self._watched: set[Key] = set()
        self._built: dict[Key, float] = {}

    def waits(self, key: Key, run_dir: Path, tasks: asyncio.TaskGroup) -> bool:
        """Return whether a running container may still be building; `woken` is called when that ends."""
        if key in self._built:
            return False
        if key not in self._watched:
            self._watched.add(key)
            tasks.create_task(self._watch(key, run_dir))
        return True

    def seconds(self, key: Key) -> float:
        """Return how long a container has built its environment, or waited for it; 0 if it existed."""
        return self._built.get(key, 0.0)

    def forget(self, key: Key) -> None:
        self._built.pop(key, None)

    async def _watch(self, key: Key, run_dir: Path) -> None:
        try:
            while (seconds := await asyncio.to_thread(built_in, run_dir)) is None:
                if not await asyncio.to_thread(run_dir.exists):
                    return
                # Many that build, maybe without end, cost the node no more looks than few.
                await asyncio.sleep(_LOOK_S * max(1.0, len(self._watched) / _FEW))
            self._built[key] = seconds
        finally:
            self._watched.discard(key)
            self._woken()


def built_in(run_dir: Path) -> float | None:
    """Return how long a container built its environment, or waited for that, in seconds; None while it does.  The file is the
    app's, and may hold anything."""
    try:
        file = os.open(run_dir / READY, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with contextlib.suppress(ValueError, OSError):
            seconds = float(os.read(file, 32))
            return seconds if 0 <= seconds <= _LONGEST_S else 0.0
        return 0.0
    finally:
        os.close(file)
