"""What containers have built: a container that still builds its environment does not count as started."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from agents.environment.builder import READY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.runtime.interface import Key

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
