"""Checkpoints of a job in the folder that its workers share: one file of the leader, one of each member for its chunks'
values.

A file is written under another name and renamed, so a reader finds a whole one or none.  It is a frame like those between
members, without pickle.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dorm.elastic.errors import ElasticError, PeerError
from dorm.elastic.ledger import Entry
from dorm.elastic.network.frames import read_frame, to_buffers
from dorm.elastic.values import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy.typing as npt

    Packed = tuple[Any, list[npt.NDArray[Any]]]

__all__ = ["Checkpoints", "Saved"]


@dataclass(frozen=True)
class Saved:
    """The state before a step, and the ledger of its epoch so far."""

    step: int
    used: Entry
    state: Packed


class Checkpoints:
    """The checkpoints of one job; without a shared folder there are none."""

    def __init__(self, shared: Path | None, slot: int) -> None:
        self._folder = shared
        self._slot = slot

    def save(self, saved: Saved) -> bool:
        """Save, and return whether that worked; a failure is printed and stops no training."""
        structure, arrays = saved.state
        header = {"step": saved.step, "used": [saved.used.samples, *saved.used.lanes], "structure": structure}
        if not self._write(f"elastic-{saved.step:012d}.state", header, arrays):
            return False
        self._forget_before(saved.step)
        return True

    def save_chunks(self, step: int, values: Mapping[int, Packed]) -> None:
        """Save the values of this member's chunks."""
        if values:
            arrays = [array for _, parts in values.values() for array in parts]
            header = {"chunks": [[chunk, structure, len(parts)] for chunk, (structure, parts) in values.items()]}
            self._write(f"elastic-{step:012d}.chunks-{self._slot}", header, arrays)

    def newest(self) -> Saved | None:
        """Return the newest checkpoint that can be read."""
        for path in self._paths("*.state")[::-1]:
            frame = _read(path)
            if frame is None:
                continue
            header, arrays = frame
            try:
                used = Entry(int(header["used"][0]), tuple(int(lane) for lane in header["used"][1:]))
                return Saved(int(header["step"]), used, (header["structure"], arrays))
            except (KeyError, TypeError, ValueError, IndexError):
                print(
                    f"dorm.elastic: {path} is not a checkpoint of this library; an older one is tried", file=sys.stderr
                )
        return None

    def chunks_of(self, step: int | None) -> Callable[[int], Any]:
        """Return a function that gives the saved value of a chunk before `step`, None if there is none."""
        known: dict[int, Packed] = {}
        for path in self._paths(f"elastic-{step:012d}.chunks-*") if step is not None else []:
            frame = _read(path)
            if frame is None:
                continue
            header, arrays = frame
            rest = iter(arrays)
            with contextlib.suppress(KeyError, TypeError, ValueError, StopIteration):
                for chunk, structure, count in header["chunks"]:
                    known[int(chunk)] = (structure, [next(rest) for _ in range(count)])

        def value(chunk: int) -> Any:
            with contextlib.suppress(ElasticError):
                return unpack(*known[chunk]) if chunk in known else None
            return None

        return value

    def _paths(self, pattern: str) -> list[Path]:
        return sorted(self._folder.glob(pattern)) if self._folder is not None else []

    def _forget_before(self, step: int) -> None:
        """Keep this checkpoint and the one before it."""
        states = [path.name.split(".")[0] for path in self._paths("elastic-*.state")]
        keep = set(states[-2:]) | {f"elastic-{step:012d}"}
        for path in self._paths("elastic-*.*"):
            if path.name.split(".")[0] not in keep:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _write(self, name: str, header: dict[str, Any], arrays: list[npt.NDArray[Any]]) -> bool:
        if self._folder is None:
            return False
        # Not `events.durable`: this library is a distribution of its own, and streams what may not fit twice into memory.
        aside = self._folder / f".{name}.{os.getpid()}"
        try:
            with aside.open("wb") as file:
                for buffer in to_buffers(header, arrays):
                    file.write(buffer)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._folder / name)
        except OSError as error:
            print(f"dorm.elastic: no checkpoint: {aside}: {error.strerror}", file=sys.stderr)
            with contextlib.suppress(OSError):
                aside.unlink()
            return False
        return True


def _read(path: Path) -> tuple[dict[str, Any], list[npt.NDArray[Any]]] | None:
    """Return a file's frame, None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return read_frame(file.readinto, lambda: None)
    except (OSError, PeerError) as error:
        print(f"dorm.elastic: {path} cannot be read ({error}); an older checkpoint is tried", file=sys.stderr)
        return None
