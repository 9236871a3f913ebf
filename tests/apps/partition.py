"""Runs the workers of one app as processes of this machine, with the contract's environment and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e import forked
from tests.lab.machines.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
"""Nothing here takes that long; it only bounds a test that has gone wrong."""


class Partition:
    """The workers of one generation.  Leaving the `with` block kills what still runs."""

    def __init__(
        self,
        folder: Path,
        program: str,
        *options: str,
        world_size: int = 1,
        generation: int = 1,
        start: bool = True,
    ) -> None:
        """Checkpoints lie in `folder`, so that generations share them; progress and logs are each generation's own."""
        self.checkpoints = folder / "checkpoints"
        self.ports = free_ports(world_size)
        self.world_size = world_size
        self._generation = generation
        self._program = program
        self._options = options
        self._own = folder / f"generation-{generation}"
        self._own.mkdir(parents=True)
        self.workers: dict[int, forked.Program] = {}
        if start:
            for rank in range(world_size):
                self.start(rank)

    def start(self, rank: int, *options: str, environment: Mapping[str, str] | None = None) -> None:
        """Start one worker, with `options` in addition to the common ones, and `environment` over the contract's."""
        contract = {
            "PATH": os.environ["PATH"],
            "DORM_APP": "app-1",
            "DORM_GENERATION": str(self._generation),
            "DORM_SLOT": str(rank),
            "DORM_RANK": str(rank),
            "DORM_WORLD_SIZE": str(self.world_size),
            "DORM_PEERS": ",".join(f"127.0.0.1:{port}" for port in self.ports),
            "DORM_CHECKPOINT_DIR": str(self.checkpoints),
            "DORM_PROGRESS": str(self._progress(rank)),
        }
        words = ("-m", f"compose.apps.{self._program}", *self._options, *options)
        with self._file(rank, "out").open("wb") as out, self._file(rank, "err").open("wb") as err:
            self.workers[rank] = forked.program(words, {**contract, **(environment or {})}, out, err, REPOSITORY)

    def __enter__(self) -> Partition:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers.values():
            worker.kill()
            worker.wait()

    def signal(self, rank: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.workers[rank].send_signal(number)

    def exit_codes(self) -> list[int]:
        """By rank, once all have exited."""
        return [self.workers[rank].wait(PATIENCE_S) for rank in sorted(self.workers)]

    def stdout(self, rank: int = 0) -> str:
        return self._file(rank, "out").read_text()

    def stderr(self, rank: int = 0) -> str:
        return self._file(rank, "err").read_text()

    def result(self) -> dict[str, Any]:
        """The last line that rank 0 printed."""
        result: dict[str, Any] = json.loads(self.stdout().splitlines()[-1])["result"]
        return result

    def progress(self, rank: int = 0) -> list[dict[str, Any]]:
        """The whole lines so far."""
        path = self._progress(rank)
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in re.findall(r"(.*)\n", text)]

    def losses(self) -> dict[int, float]:
        """Reported loss by step."""
        return {line["step"]: line["loss"] for line in self.progress() if "step" in line}

    def saved_steps(self) -> list[int]:
        return [line["checkpoint"] for line in self.progress() if "checkpoint" in line]

    def until_step(self, step: int) -> None:
        """Wait until this step is reported."""
        self.until(lambda: any(line.get("step", 0) >= step for line in self.progress()), f"step {step}")

    def until_listening(self, rank: int) -> None:
        """Wait until a worker waits for the others (by looking, since a connection would disturb it)."""
        wanted = f"0100007F:{self.ports[rank]:04X} 00000000:0000 0A"
        self.until(lambda: wanted in Path("/proc/net/tcp").read_text(), f"rank {rank} listening")

    def until(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            if all(worker.poll() is not None for worker in self.workers.values()) and not happened():
                said = [self.stderr(rank) for rank in self.workers]
                raise AssertionError(f"all workers ended before {what}: {said}")
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(0.005)

    def _progress(self, rank: int) -> Path:
        return self._file(rank, "progress.jsonl")

    def _file(self, rank: int, suffix: str) -> Path:
        return self._own / f"{rank}.{suffix}"
