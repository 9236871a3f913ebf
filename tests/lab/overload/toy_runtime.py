"""A runtime with simulated containers: for benches of everything else, with a thousand nodes on one machine.

An app works for the seconds in its command (`toy 30`), reports its steps in a real progress file, saves and ends when it is
asked to stop, and continues from there in its next generation, like a training app.  No container survives the process.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agents.runtime.interface import PROGRESS_FILE, Seen, Use, key_name, spec_hash
from agents.runtime.workdir import BlobCache
from events.requests import LogPiece, LogStretch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from agents.runtime.interface import Command, ContainerSpec, Execution, Key, Listener, Wanted

_SAVING_S = 0.1
"""From the request to stop to the end."""
_MEMORY = 64 << 20


class ToyRuntime:
    """The runtime of one node; `root` is its own folder, best in memory."""

    name = "toy"
    limits = False
    checkpoint_mount = ""
    outputs_mount = ""
    mounts = False
    serves = ""
    engine_folder = None

    def __init__(self, root: Path, *, tells_s: float = 2.0) -> None:
        """`tells_s`: seconds between two lines of progress."""
        self._root = root
        self._tells_s = tells_s
        self._seen: dict[Key, Seen] = {}
        self._working: dict[Key, asyncio.Task[None]] = {}
        self._hint = asyncio.Event()
        self._lease_ends: float | None = None

    @property
    def blobs(self) -> BlobCache:
        return BlobCache(self._root / "workdirs")

    def owner_of(self, tenant: str) -> tuple[int, int] | None:
        return None

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        for task in self._working.values():
            task.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)
        self._working.clear()

    async def list(self) -> list[Seen]:
        return sorted(self._seen.values(), key=lambda seen: seen.key)

    async def prepare(self, spec: ContainerSpec) -> None:
        """Nothing takes long here."""

    async def ensure(self, spec: ContainerSpec, files: Mapping[str, bytes] | None = None) -> Seen:
        key = spec.key
        if key not in self._seen:
            self.run_dir(key).mkdir(parents=True, exist_ok=True)
            for name, content in (files or {}).items():
                await self.put(key, name, content)
            self._seen[key] = Seen(key, "running", spec_hash(spec), started_at=time.time_ns())
            self._working[key] = asyncio.get_running_loop().create_task(self._work(spec))
        return self._seen[key]

    async def _work(self, spec: ContainerSpec) -> None:
        loop, saved = asyncio.get_running_loop(), Path(spec.checkpoint_dir) / "seconds"
        before = float(saved.read_text() or 0) if saved.exists() else 0.0  # a few bytes, in memory
        began, step = loop.time(), int(before)
        try:
            while (left := float(spec.command[-1]) - before - (loop.time() - began)) > 0:
                await asyncio.sleep(min(left, self._tells_s))
                step = int(before + loop.time() - began)
                self._tell(spec.key, {"step": step, "loss": 1 / (1 + step)})
        finally:
            if spec.key.slot == 0:
                saved.write_text(str(before + loop.time() - began))
            self._tell(spec.key, {"checkpoint": step})
        self._end(spec.key, 0)

    def _tell(self, key: Key, line: dict[str, float]) -> None:
        """As in a training app, one worker reports for all of them."""
        if key.slot == 0:
            # Writing a short line to a file in memory is faster than passing it to a thread.
            with open(self.run_dir(key) / PROGRESS_FILE, "a") as file:
                file.write(json.dumps(line) + "\n")

    def _end(self, key: Key, code: int) -> None:
        seen = self._seen[key]
        if seen.state == "running":
            self._seen[key] = msgspec.structs.replace(seen, state="exited", exited_at=time.time_ns(), exit_code=code)
            self._working.pop(key, None)
            self._hint.set()

    async def stop(self, key: Key, grace_s: float) -> bool:
        """Save and end, always in time; without a grace time, it is killed."""
        working = self._working.get(key)
        if working is None:
            return False
        if grace_s:
            await asyncio.sleep(min(_SAVING_S, grace_s))
        working.cancel()
        self._end(key, 0 if grace_s else 137)
        return not grace_s

    async def run(self, key: Key, command: tuple[str, ...], timeout_s: float) -> int:
        return 0

    def run_mount(self, key: Key) -> str:
        return str(self.run_dir(key))

    async def put(self, key: Key, name: str, content: bytes) -> None:
        # Writing a few bytes to a file in memory is faster than passing them to a thread.
        (self.run_dir(key) / name).write_bytes(content)

    async def remove(self, key: Key) -> None:
        if self._seen.pop(key, None) is not None:
            (self.run_dir(key) / PROGRESS_FILE).unlink(missing_ok=True)
            self.run_dir(key).rmdir()

    async def logs(self, key: Key, *, follow: bool, tail: int | None) -> AsyncGenerator[bytes, None]:
        if key not in self._seen:
            raise KeyError(key)
        yield b"a toy has nothing to say\n"

    async def timed_logs(self, key: Key, wanted: Wanted) -> AsyncGenerator[LogPiece, None]:
        async for chunk in self.logs(key, follow=wanted.follow, tail=wanted.tail):
            yield LogPiece([LogStretch(0, chunk)], "end")

    async def use(self, key: Key) -> Use | None:
        return Use(cpu_s=1.0, memory=_MEMORY) if key in self._working else None

    def run_dir(self, key: Key) -> Path:
        return self._root / key_name(key)

    async def hints(self) -> AsyncGenerator[None, None]:
        while True:
            self._hint.clear()
            yield
            await self._hint.wait()

    async def extend_lease(self, seconds: float) -> None:
        """Only note it: no container here outlives its agent."""
        self._lease_ends = asyncio.get_running_loop().time() + seconds

    async def lease_left(self) -> float | None:
        return None if self._lease_ends is None else self._lease_ends - asyncio.get_running_loop().time()

    async def variables(self, key: Key) -> dict[str, str]:
        return {}

    async def runs(self, key: Key) -> bool:
        return False

    async def execute(self, key: Key, command: Command) -> Execution:
        raise KeyError(key)

    async def listener(self, key: Key, port: int) -> Listener | None:
        raise KeyError(key)

    async def root_id(self) -> str:
        return "toy"
