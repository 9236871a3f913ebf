"""The network of `training.py` in PyTorch, under torchrun's elastic agent or under torchft: `peer_training.py KIND …`.

    torchrun    one worker of torchrun: any change starts all workers again, from the last checkpoint
    torchft     one replica of torchft: the others continue, and a newcomer receives the state from one of them
    lighthouse  torchft's coordinator; prints its address

It reads the data that `training.py` reads and writes the same records.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dorm_lab.bench.elastic.training import BATCH, CLASSES, FIRST, HIDDEN, RECORD

__all__ = ["main"]

_TIMEOUT_S = 30.0
_JOIN_MS = 200


class _Log:
    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.add(FIRST, 0.0)

    def add(self, step: int, loss: float) -> None:
        os.write(self._file, RECORD.pack(step, time.monotonic(), time.process_time(), loss))


class _Training:
    """Model, data and the gradient of a step."""

    def __init__(self, data: Path) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        with np.load(data) as arrays:
            self._features = torch.tensor(arrays["features"], dtype=torch.float32)
            self._classes = torch.tensor(arrays["classes"])
        inputs = self._features.shape[1]
        self.model = torch.nn.Sequential(
            torch.nn.Linear(inputs, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
        )

    def computed(self, step: int, rank: int, size: int) -> float:
        """Compute the gradient of this worker's share of a batch; return the loss."""
        low = step * BATCH % (len(self._classes) - BATCH)
        own = slice(low + BATCH * rank // size, low + BATCH * (rank + 1) // size)
        self.model.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(self._features[own]), self._classes[own])
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]  # where PyTorch is installed
        return float(loss.item())

    def gradients(self) -> list[Any]:
        return [parameter.grad for parameter in self.model.parameters()]

    def improve(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator, unused-ignore]


def _torchrun(options: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    rank, size = dist.get_rank(), dist.get_world_size()
    training = _Training(options.data)
    checkpoint = options.records / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        training.model.load_state_dict(saved["model"])
        step = saved["step"]
    log = _Log(options.records, f"1-{os.getpid()}.steps")
    saved_at = time.monotonic()
    while True:
        loss = training.computed(step, rank, size)
        for gradient in training.gradients():
            dist.all_reduce(gradient)
            gradient /= size
        training.improve()
        time.sleep(options.device_s)
        log.add(step, loss)
        step += 1
        if rank == 0 and time.monotonic() - saved_at > options.save_every:
            aside = checkpoint.with_suffix(f".{os.getpid()}")
            torch.save({"model": training.model.state_dict(), "step": step}, aside)
            aside.replace(checkpoint)
            saved_at = time.monotonic()


def _torchft(options: Any) -> None:
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo

    training = _Training(options.data)
    training.computed(0, 0, 1)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    limit = timedelta(seconds=_TIMEOUT_S)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=training.model.load_state_dict,
        state_dict=training.model.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=limit,
        quorum_timeout=limit,
        connect_timeout=limit,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        replica_id=f"replica_{options.slot}_",
        hostname="127.0.0.1",
    )
    log = _Log(options.records, f"1-{options.slot}.steps")
    while True:
        manager.start_quorum()
        step, size = manager.current_step(), manager.num_participants()
        loss = training.computed(step, manager.participating_rank() or 0, max(1, size))
        for gradient in training.gradients():
            manager.allreduce(gradient).wait()
        if manager.should_commit():
            training.improve()
            time.sleep(options.device_s)
            log.add(step, loss)


def _lighthouse(_: Any) -> None:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=_JOIN_MS, heartbeat_timeout_ms=2000)
    print(server.address(), flush=True)
    sys.stdin.read()  # Until the bench closes the pipe.


def main() -> None:
    options = _options()
    {"torchrun": _torchrun, "torchft": _torchft, "lighthouse": _lighthouse}[options.kind](options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A worker of another system, for `dorm bench elastic`.")
    parser.add_argument("kind", choices=["torchrun", "torchft", "lighthouse"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--records", type=Path)
    parser.add_argument("--device-s", type=float, default=0.0)
    parser.add_argument("--save-every", type=float, default=0.5)
    parser.add_argument("--slot", type=int, default=0)
    parser.add_argument("--lighthouse", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
