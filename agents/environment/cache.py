"""The environments of a node: a folder for each, below the node's own, until they take too much room.

    FOLDER/KEY/       made by the agent, filled by a container (`builder`), which owns it

One that a container uses holds a lock on it, so it is never removed; of the others the ones go first that were not used for
longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

import structlog

from agents.environment import plan
from agents.environment.plan import Environment
from agents.runtime.interface import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from events.spec import AppSpec

_log = structlog.get_logger(__name__)
MOST_BYTES: Final = 32 * 1024**3
"""Of all environments of a node together, as far as they are not in use."""
MOST: Final = 64
"""Environments that are kept."""
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

    def of(self, spec: AppSpec, owner: str) -> Environment | None:
        """Return the environment of an app's containers, None if it needs none."""
        if not spec.needs_environment:
            return None
        key = plan.key_of(spec, owner, spec.image if self._mounted else _BASE)
        source = str(self.root / key)
        return Environment(key, source, plan.INSIDE if self._mounted else source, site_packages=self._mounted)

    async def have(self, environment: Environment | None, owner: tuple[int, int] | None) -> None:
        """Create the folder of an environment, owned by `owner` (uid, gid; None for the agent's own user), and remove
        others if there are too many. Raises Unavailable."""
        if environment is None:
            return
        try:
            await asyncio.to_thread(self._have, environment.key, owner)
        except OSError as error:
            raise Unavailable(
                f"the environments' folder {self.root} cannot be written: {error.strerror}",
                code="environment.folder.not_writable",
            ) from error

    def _have(self, key: str, owner: tuple[int, int] | None) -> None:
        folder = self.root / key
        if folder.is_dir():
            return
        self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.collect()
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if owner is not None and owner != (os.getuid(), os.getgid()):
                os.chown(folder, *owner)

    def collect(self) -> list[str]:
        """Remove the environments that were not used for longest, of those that are not in use, until the rest is within the
        bounds; return their keys.  Blocks."""
        for left in self.root.glob(".*"):
            shutil.rmtree(left, ignore_errors=True)
        kept = sorted(self.root.iterdir(), key=_used_at, reverse=True)
        size, removed = 0, []
        for number, folder in enumerate(kept):
            size += self._size(folder)
            if (number >= self._most or size > self._most_bytes) and _remove(folder):
                removed.append(folder.name)
                self._sizes.pop(folder.name, None)
        if removed:
            _log.info("environments are removed", folder=str(self.root), keys=removed)
        return removed

    def _size(self, folder: Path) -> int:
        """Return the bytes of one that is built, measured once."""
        if folder.name not in self._sizes:
            measured = sum(_blocks(name, descriptor) for _, _, names, descriptor in os.fwalk(folder) for name in names)
            if not (folder / "ready").exists():
                return measured
            self._sizes[folder.name] = measured
        return self._sizes[folder.name]


def _used_at(folder: Path) -> float:
    for path in (folder / "ready", folder):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _blocks(name: str, folder: int) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_blocks * 512
    except OSError:
        return 0


def _remove(folder: Path) -> bool:
    """Remove one that no container uses; return whether it is gone.  It is renamed first, so that none begins to use it."""
    gone = folder.with_name(f".{folder.name}")
    try:
        with contextlib.ExitStack() as held:
            with contextlib.suppress(FileNotFoundError):  # No container has used it.
                lock = os.open(folder / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder.rename(gone)
    except OSError:
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return not gone.exists()
