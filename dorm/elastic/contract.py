"""The contract with the cluster: what a worker reads from its environment, and what it appends to its progress file.

    DORM_MEMBERS         file with the announced membership, which the agent replaces
    DORM_PEERS           if there is no such file: host:port of all workers, by rank; they never change
    DORM_SLOT            this worker's number
    DORM_PROGRESS        file that takes a JSON line for each fact
    DORM_CHECKPOINT_DIR  folder that all workers share

Outside a cluster none of these is set, and the script is the only worker.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dorm.elastic.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Announcement", "Contract", "Progress"]

_LARGEST = 4 * 1024 * 1024
"""Bytes of an announcement."""


@dataclass(frozen=True)
class Announcement:
    """The membership that the agent has announced: each slot's host and port."""

    generation: int
    membership: int
    members: dict[int, tuple[str, int]]
    founders: tuple[int, ...] = ()
    """Slots of the generation's first membership, empty if the announcement does not say."""

    @classmethod
    def of(cls, text: str | bytes) -> Announcement:
        """Return the announcement in a file.  Raises ContractError."""
        try:
            document = json.loads(text)
            members = {
                int(member["slot"]): (str(member["host"]), int(member["port"])) for member in document["members"]
            }
            founders = tuple(int(slot) for slot in document.get("founders", ()))
            return cls(int(document["generation"]), int(document["membership"]), members, founders)
        except (ValueError, KeyError, TypeError) as error:
            text = f"the file that DORM_MEMBERS names cannot be read: {error!r}"
            raise ContractError(text, code="elastic.contract.members") from None


@dataclass(frozen=True)
class Contract:
    """What this worker knows about its place."""

    app: str = "alone"
    generation: int = 1
    slot: int = 0
    members: Path | None = None
    fixed: Announcement = field(default_factory=lambda: Announcement(1, 1, {0: ("127.0.0.1", 0)}))
    """The membership if no file announces one."""
    progress: Path | None = None
    shared: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Contract:
        """Raises ContractError, which names the variable."""
        app = environment.get("DORM_APP", "alone")
        slot = _number(environment, "DORM_RANK" if "DORM_MEMBERS" not in environment else "DORM_SLOT")
        generation = _number(environment, "DORM_GENERATION", 1)
        peers = environment.get("DORM_PEERS", "")
        fixed = Announcement(generation, 1, _peers(peers) if peers else {slot: ("127.0.0.1", 0)})
        if slot not in fixed.members and "DORM_MEMBERS" not in environment:
            text = f"DORM_RANK is {slot}, and DORM_PEERS names {len(fixed.members)} workers"
            raise ContractError(text, code="elastic.contract.environment")
        return cls(
            app=app,
            generation=generation,
            slot=slot,
            members=_path(environment, "DORM_MEMBERS"),
            fixed=fixed,
            progress=_path(environment, "DORM_PROGRESS"),
            shared=_path(environment, "DORM_CHECKPOINT_DIR"),
        )

    def mark(self) -> tuple[int, int, int] | None:
        """Return a value that changes when the agent replaces the file; None without a file.  It costs one system call;
        reading the announcement costs ten times as much.  Raises OSError."""
        if self.members is None:
            return None
        status = self.members.stat()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def announcement(self) -> Announcement | None:
        """Return the present announcement, None while there is no file yet.  Raises ContractError."""
        if self.members is None:
            return self.fixed
        try:
            with self.members.open("rb") as file:
                return Announcement.of(file.read(_LARGEST))
        except FileNotFoundError:
            return None


class Progress:
    """The progress file; without one, facts are dropped."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, **fact: Any) -> None:
        """Append one fact.  A full disk stops no training: the line is lost."""
        if self._path is not None:
            with contextlib.suppress(OSError), self._path.open("a") as file:
                file.write(json.dumps(fact) + "\n")


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    try:
        return int(environment.get(name, default))
    except ValueError:
        text = f"{name} is {environment[name]!r}, which is not a number"
        raise ContractError(text, code="elastic.contract.environment") from None


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    return Path(environment[name]) if environment.get(name) else None


def _peers(text: str) -> dict[int, tuple[str, int]]:
    peers = {}
    for rank, entry in enumerate(text.split(",")):
        host, _, port = entry.rpartition(":")
        if not host or not port.isdigit():
            raise ContractError(f"DORM_PEERS: {entry!r} is not host:port", code="elastic.contract.environment")
        peers[rank] = (host.strip("[]"), int(port))
    return peers
