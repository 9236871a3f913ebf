"""The pauses of other systems for comparison: torchrun's elastic agent (rendezvous c10d) and torchft, if installed.

Each has one process for each worker, as on nodes with one device.  Workers join (the second half of them), one is killed, and
half of them leave; a pause is the time from the last new step before a change to the first one after it, less an ordinary
step.  torchrun starts all workers again, from a checkpoint that is at most `SAVE_EVERY_S` old; a killed worker is started
again by its agent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

import psutil

from dorm.bench import BenchError
from dorm_lab.bench.elastic import steps
from dorm_lab.bench.elastic.pauses import DEVICE_S, Pause, no_torch, script
from dorm_lab.bench.elastic.workers import SEARCHED, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dorm.bench.report import Progress

__all__ = ["LAST_CALL_S", "PEERS", "SAVE_EVERY_S", "missing", "peer_pauses"]

PEERS = ("torchrun", "torchft")
LAST_CALL_S = 1
"""Seconds that torchrun waits for more nodes if fewer than the maximum have joined; its default is 30."""
SAVE_EVERY_S = 0.5
_STEPS = 25
_LONGEST_S = 90.0
_LOOK_S = 0.05


def missing(peer: str) -> str:
    """Return why a system cannot be measured, "" if it can."""
    if reason := no_torch():
        return reason
    if peer == "torchft" and find_spec("torchft") is None:
        return "torchft is not installed: pip install torchft"
    return ""


def peer_pauses(peer: str, sizes: Sequence[int], folder: Path, data: Path, progress: Progress) -> Iterator[Pause]:
    """Yield the pauses of each size.  Raises BenchError with the reason if the system does not train."""
    for size in sizes:
        progress(f"{peer}: {size} workers")
        place = folder / f"{peer}-{size}"
        place.mkdir(parents=True)
        with ExitStack() as stack:
            peers = _Peers(peer, place, data, size)
            stack.callback(peers.close)
            if peer == "torchft":
                peers.start_lighthouse()
            yield from _changes(peers, size)


def _changes(peers: _Peers, size: int) -> Iterator[Pause]:
    half = size // 2
    for slot in range(half):
        peers.start(slot)
    peers.trains(half)
    # torchrun's agents start a killed worker again; with torchft, nothing does.
    left = size - (peers.name == "torchft")

    def come() -> None:
        for slot in range(half, size):
            peers.start(slot)

    def leave() -> None:
        for slot in range(half, left):
            peers.stop(slot)

    yield Pause(peers.name, "", size, "grow", peers.pause(come, size))
    yield Pause(peers.name, "", size, "death", peers.pause(lambda: peers.kill(size - 1), left))
    if left > half:
        yield Pause(peers.name, "", size, "shrink", peers.pause(leave, half))


class _Peers:
    """The processes of one job of another system."""

    def __init__(self, name: str, folder: Path, data: Path, size: int) -> None:
        self.name = name
        self._folder = folder
        self._size = size
        self._port = free_port()
        self._lighthouse = ""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._leaving: set[int] = set()
        self._common = ["--data", str(data), "--records", str(folder), "--device-s", str(DEVICE_S)]

    def start_lighthouse(self) -> None:
        server = self._run(-1, [script("peer_training.py"), "lighthouse"], pipes=True)
        assert server.stdout is not None
        self._lighthouse = server.stdout.readline().decode().strip()
        if not self._lighthouse:
            raise self._failed("the lighthouse did not start")

    def start(self, slot: int) -> None:
        if self.name == "torchft":
            own = ["--slot", str(slot), "--lighthouse", self._lighthouse]
            self._run(slot, [script("peer_training.py"), "torchft", *self._common, *own])
            return
        self._run(
            slot,
            [
                "-m", "torch.distributed.run",
                "--nnodes", f"1:{self._size}", "--nproc-per-node", "1", "--max-restarts", "100",
                "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-id", "bench",
                "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--local-addr", "127.0.0.1",
                "--rdzv-conf", f"is_host={int(slot == 0)},last_call_timeout={LAST_CALL_S}",
                script("peer_training.py"), "torchrun", *self._common, "--save-every", str(SAVE_EVERY_S),
            ],
        )  # fmt: skip

    def kill(self, slot: int) -> None:
        """Kill a worker; torchrun's agent above it lives on."""
        process = psutil.Process(self._processes[slot].pid)
        if self.name == "torchft":
            self._leaving.add(slot)
        for victim in process.children() if self.name == "torchrun" else [process]:
            victim.kill()

    def stop(self, slot: int) -> None:
        """Ask for the end; the exit code does not matter."""
        self._leaving.add(slot)
        self._processes[slot].send_signal(signal.SIGTERM)

    def pause(self, change: Callable[[], object], workers: int) -> float:
        """Make a change, wait until this many workers train, and return the longest pause since."""
        began = time.monotonic()
        change()
        self.trains(workers, since=began)
        return steps.longest_pause(steps.trained(steps.read(self._folder)), began)

    def trains(self, workers: int = 1, since: float = 0.0) -> None:
        """Wait until as many workers have made new steps since then, each of them several."""
        deadline = time.monotonic() + _LONGEST_S
        known = max((done.step for done in self._all() if done.at <= since), default=-1)
        while True:
            # Each generation of torchrun has its own files, so the current workers are those whose files grow.
            now = time.monotonic()
            records = steps.trained(steps.read(self._folder)).values()
            active = [s for s in records if s and s[-1].step > known + _STEPS and s[-1].at > now - 1.0]
            if len(active) == workers and all(len(s) >= _STEPS for s in active):
                return
            ended = any(p.poll() is not None for slot, p in self._processes.items() if slot not in self._leaving)
            if now > deadline or ended:
                waited = f"{now - deadline + _LONGEST_S:.0f} s"
                raise self._failed(f"{len(active)} of {workers} workers train after {waited}")
            time.sleep(_LOOK_S)

    def _all(self) -> list[steps.Done]:
        return [record for records in steps.trained(steps.read(self._folder)).values() for record in records]

    def _run(self, slot: int, arguments: list[str], *, pipes: bool = False) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([SEARCHED, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "OMP_NUM_THREADS": "1",
            "PYTHONSAFEPATH": "1",
            # With a shared store, agents of PyTorch 2.13 that join later wait in vain for the address of rank 0.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with (self._folder / f"output-{slot}").open("ab") as output:
            self._processes[slot] = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                start_new_session=True,
            )
        return self._processes[slot]

    def _failed(self, text: str) -> BenchError:
        lines = [line for path in sorted(self._folder.glob("output-*")) for line in path.read_text().splitlines()]
        errors = [line.strip() for line in lines if "Error" in line][-1:]
        error = BenchError(f"{self.name}: {text}; it printed: {'; '.join(errors) or 'no error'}", code="bench.workers")
        error.add_note("\n".join(lines))
        return error

    def close(self) -> None:
        """End all processes, and the workers that agents have started."""
        everyone = []
        for process in self._processes.values():
            if process.poll() is None:
                everyone += psutil.Process(process.pid).children(recursive=True)
            process.kill()
        for member in everyone:
            if member.is_running():
                member.kill()
        for process in self._processes.values():
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()
