"""Read a worker's place in its partition from the DORM_* environment.

Without these variables a program runs alone, as rank 0 of 1, and saves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compose.apps.worker.failures import BadSetting

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Place:
    """This worker's identity and its peers."""

    app: str
    generation: int
    rank: int
    world_size: int
    peers: tuple[tuple[str, int], ...]
    """Host and port of every rank; empty only for a single worker."""
    checkpoint_dir: Path | None
    """Shared by all workers; rank 0 writes."""
    progress: Path | None
    """Rank 0 appends to it."""

    @property
    def label(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


def read_place(environment: Mapping[str, str]) -> Place:
    """Return the worker's place.  Raises `BadSetting` naming the variable that is wrong."""
    world_size = whole(environment, "DORM_WORLD_SIZE", default=1, least=1)
    rank = whole(environment, "DORM_RANK", default=0, least=0)
    if rank >= world_size:
        raise BadSetting(f"DORM_RANK is {rank}, but ranks end at {world_size - 1} (DORM_WORLD_SIZE is {world_size})")
    peers = tuple(address(text.strip()) for text in environment.get("DORM_PEERS", "").split(",") if text.strip())
    if len(peers) != world_size and (peers or world_size > 1):
        raise BadSetting(f"DORM_PEERS names {len(peers)} workers, DORM_WORLD_SIZE is {world_size}")
    checkpoint_dir = environment.get("DORM_CHECKPOINT_DIR")
    progress = environment.get("DORM_PROGRESS")
    return Place(
        app=environment.get("DORM_APP", ""),
        generation=whole(environment, "DORM_GENERATION", default=0, least=0),
        rank=rank,
        world_size=world_size,
        peers=peers,
        checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir else None,
        progress=Path(progress) if progress else None,
    )


def whole(environment: Mapping[str, str], name: str, *, default: int, least: int) -> int:
    """Return a variable that is a whole number.  Raises `BadSetting`."""
    text = environment.get(name)
    if text is None and default >= least:
        return default
    if text is None:
        raise BadSetting(f"{name} is missing")
    try:
        value = int(text)
    except ValueError:
        raise BadSetting(f"{name} is {text!r}, not a whole number") from None
    if value < least:
        raise BadSetting(f"{name} is {value}, less than {least}")
    return value


def address(text: str, variable: str = "DORM_PEERS") -> tuple[str, int]:
    """Return host and port.  Raises `BadSetting`."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise BadSetting(f"{variable} holds {text!r}, which is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
