"""Stops containers that write more to the node's disk than they may.

Engines limit the disk of a container only with few storage drivers and file systems, and never the size of a mounted
directory.  So each container's private directory, its copy of a shipped folder with the folders above it and its environment
are measured from time to time, and its own layer of the image if that is writable.  One that is over the bound is killed, with
a note beside its directory: its end is the app's own failure.  The folder of checkpoints is not measured here, since all nodes
share it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from agents.runtime.docker import container_config
from agents.runtime.interface import ENVIRONMENT_MOUNT, Unavailable
from agents.runtime.removing import DEEPEST, taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agents.runtime.docker.engine import Engine, Json
    from agents.runtime.run_dirs import RunDirs

_log = structlog.get_logger(__name__)
STOPPED: Final = "disk"
"""The note, which holds the reason."""
_INTERVAL_S: Final = 5.0
_MOST_FILES: Final = 1_000_000
"""Files without content fill a disk as well."""
_GIB: Final = 1024**3


def measured(folders: Iterable[Path], most_bytes: int, most_files: int = _MOST_FILES) -> str:
    """Return why these folders together are too large, "" if they are not.  Blocks."""
    for size, files, too_deep in taken(folders):
        if too_deep:
            return f"it nested more than {DEEPEST} folders on the node's disk"
        if size > most_bytes:
            return f"it wrote more than {most_bytes / _GIB:.3g} GiB to the node's disk (dorm agent --container-disk)"
        if files > most_files:
            return f"it made more than {most_files:,} files on the node's disk"
    return ""


class DiskWatch:
    """Watches one node's containers; `host` returns the runtime's settings."""

    def __init__(self, engine: Engine, dirs: RunDirs, host: Callable[[], container_config.Host]) -> None:
        self._engine = engine
        self._dirs = dirs
        self._host = host

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            try:
                await self.look()
            except (Unavailable, OSError) as failure:
                _log.info("the containers' disk use is unknown", node=self._host().node, reason=str(failure))

    async def look(self) -> None:
        """Stop the containers that are over the bound.  Raises `Unavailable`, OSError."""
        for summary in await self._engine.list(container_config.own_labels(self._host())):
            key = container_config.key_of(summary["Labels"])
            if key is None or summary["State"] != "running":
                continue
            folders = [self._dirs.run_dir(key), self._dirs.work_dirs(key)[0], *_environment(summary)]
            folders += await self._layer(summary["Id"])
            reason = await asyncio.to_thread(measured, folders, self._host().profile.disk)
            if reason:
                _log.warning("a container is stopped", node=self._host().node, key=key, reason=reason)
                note = self._dirs.container_dir(key) / STOPPED
                await asyncio.to_thread(note.write_text, reason)
                await self._engine.kill(summary["Id"], "SIGKILL")

    async def _layer(self, name: str) -> list[Path]:
        """Return where the container's changes of the image are, if it can make any and the engine keeps them in a folder."""
        info: Json | None = await self._engine.inspect(name) if self._host().profile.allow else None
        if info is None or info["HostConfig"].get("ReadonlyRootfs"):
            return []
        upper = ((info.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
        return [Path(upper)] if upper else []

    def reason(self, container_dir: Path) -> str:
        """Return why a container was stopped, "" if it was not.  Blocks."""
        try:
            return (container_dir / STOPPED).read_text(errors="replace")
        except OSError:
            return ""


def _environment(summary: Json) -> list[Path]:
    """Return the folder of the container's environment, which it shares with others of its tenant and may write to."""
    mounts = summary.get("Mounts") or ()
    return [Path(mount["Source"]) for mount in mounts if mount.get("Destination") == ENVIRONMENT_MOUNT]
