"""The environments of a node: a folder for each, below the node's own, until they take too much room.

    FOLDER/KEY/       made by the agent, filled by a container (`builder`), which owns it

One that a container uses holds a lock on it, so it is never removed.  Of the others, those of the largest owner go
first, the longest unused ones before others.  So no owner's builds push out those of others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import sys
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from agents.environment import plan
from agents.environment.plan import Environment
from agents.runtime.disk_use import taken
from agents.runtime.interface import ENVIRONMENT_MOUNT, Unavailable
from agents.runtime.long_work import LongWork, Remains
from agents.runtime.removing import delete

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from events.spec import AppSpec

_log = structlog.get_logger(__name__)
MOST_BYTES: Final = 32 * 1024**3
"""Of all unused environments of a node together."""
MOST: Final = 64
"""Environments that are kept."""
_AHEAD_S: Final = 60.0
"""How far, in seconds, a file's time may be ahead of the agent's clock."""
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
        if not spec.needs_environment or (not self._mounted and plan.is_bare(spec)):
            return None
        on_another = spec.python.startswith("/")
        base = spec.image if self._mounted else f"on {spec.python}" if on_another else _BASE
        key = plan.key_of(spec, owner, base)
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
        has = {owner: (sum(sizes[one] for one in folders), len(folders)) for owner, folders in of.items()}
        removed = []
        while any(of.values()):
            size, count = (sum(one[place] for one in has.values()) for place in (0, 1))
            if size <= self._most_bytes and count <= self._most:
                break
            place = 0 if size > self._most_bytes else 1
            owner = max((one for one in of if of[one]), key=lambda one: has[one][place])
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
