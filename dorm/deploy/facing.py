"""What a machine lacks, checked before any file is written: a unit with a wrong path fails later, and says little."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from dorm.deploy.rendering import parts

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.deploy.settings import Deployment


class Lack(NamedTuple):
    """One thing that a machine lacks."""

    code: str
    text: str
    """What, and what to do."""


def lacks(settings: Deployment, machine: str, root: Path) -> list[Lack]:
    """Return what this machine lacks; its file system is at `root`.  Raises DeploymentError."""
    named = {part.name for part in parts(settings, machine)}
    found = [_program(settings, root, "dorm")]
    if "NATS server" in named:
        found.append(_program(settings, root, "nats-server"))
    if "node" in named:
        found.append(_mounted(settings, root))
    if machine in settings.machines and named - {"node", "backup"}:
        found.append(_address(settings.machines[machine]))
    return [one for one in found if one is not None]


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _program(settings: Deployment, root: Path, name: str) -> Lack | None:
    path = _under(root, f"{settings.program}/bin/{name}")
    if path.is_file() and os.access(path, os.X_OK):
        return None
    return Lack(
        "deploy.program.missing",
        f"there is no program {path}; install Dorm there first (`python3 -m venv {settings.program}`, then its pip), or "
        "correct `program` in the settings",
    )


def _mounted(settings: Deployment, root: Path) -> Lack | None:
    if not settings.mount_point:
        return None
    path = _under(root, settings.mount_point)
    if path.is_mount():
        return None
    what = "nothing is mounted there" if path.is_dir() else "there is no such folder"
    return Lack(
        "deploy.mount.missing",
        f"{path} has to be the file system with the checkpoints that all nodes share, and {what}; mount it (and add it to "
        "/etc/fstab), name its mount point with mount, or set mount: none for a cluster of one machine",
    )


def _address(address: str) -> Lack | None:
    try:
        kind, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.bind(place)
    except OSError:
        return Lack(
            "deploy.address.elsewhere",
            f"this machine has no address {address}; name the machine that this is with --machine, or correct its address",
        )
    return None
