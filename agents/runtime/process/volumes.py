"""Volumes of plain processes: below the private directory, as mounts if this agent may mount, else as links.

The supervisor makes a mount in a private mount namespace of the program, so no other process sees it and it ends with
the program. It prevents a program from writing to a volume by mistake; a program that runs as root could mount it
again. A link prevents nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agents.runtime.run_dirs import RUN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.runtime.interface import Mount

_CAP_SYS_ADMIN: Final = 21
FILE: Final = "mounts"
"""The record that the supervisor reads: name, source, target and `ro` or `rw` of each, NUL-separated."""


def may_mount() -> bool:
    """Return whether this process may mount (CAP_SYS_ADMIN of capabilities(7))."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def put(new: Path, mounts: Sequence[Mount], *, mounting: bool) -> None:
    """Make the places of the volumes in a container's folder that is being filled.  Raises OSError."""
    if not mounts:
        return
    folder = new / RUN / "volumes"
    folder.mkdir(mode=0o700)
    for mount in mounts:
        if mounting:
            (folder / mount.name).mkdir()
        else:
            (folder / mount.name).symlink_to(mount.source)
    if mounting:
        fields = [
            field for one in mounts for field in (one.name, one.source, one.target, "ro" if one.read_only else "rw")
        ]
        with (new / FILE).open("wb") as file:
            file.write(b"\0".join(map(os.fsencode, fields)))
            file.flush()
            os.fsync(file.fileno())


def inside(folder: Path, program: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return how to run a command among the mounts of a running program, by nsenter(1)."""
    if not program or not (folder / FILE).exists():
        return command
    return "nsenter", f"--mount=/proc/{program}/ns/mnt", "--wd=.", "--", *command
