"""A network with one hidden layer on handwritten digits, in PyTorch with DistributedDataParallel: for the engine `torchrun`.

python3 torch_mlp.py --steps 400 [--resume]

Everything that makes a PyTorch script resizable is here: the batch of a step is the same for any number of workers, a request
to stop travels with an all-reduce, and rank 0 saves what any number of workers can resume.  It imports PyTorch,
scikit-learn for the data, and no other sample: copy it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STOPPED = 128 + signal.SIGTERM
BATCH = 360
"""Samples of a step, over all workers."""
HIDDEN = 48


def main() -> NoReturn:
    options = _parser().parse_args()
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    digits = load_digits()
    inputs = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target, dtype=torch.int64)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    step = _load(model, optimizer) if options.resume else 0
    print(f"rank {rank} of {size} begins after step {step}", flush=True)
    stopping = False
    while step < options.steps and not stopping:
        began = time.monotonic()
        step += 1
        rows = _rows(step, len(inputs))
        share = rows[BATCH * rank // size : BATCH * (rank + 1) // size]
        # The mean over all workers' losses, which DDP computes, is the mean over the batch, however it is divided.
        loss = nn.functional.cross_entropy(model(inputs[share]), labels[share], reduction="sum") * size / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean, stopping = _agreed(loss, stop=bool(signals))
        if rank == 0 and (step % 5 == 0 or stopping or step == options.steps):
            _append({"step": step, "loss": mean})
        if step % 50 == 0 or stopping or step == options.steps:
            _save(step, model, optimizer)
        time.sleep(max(0.0, options.pace * len(share) / BATCH - (time.monotonic() - began)))
    if rank == 0 and not stopping:
        with torch.no_grad():
            right = (model.module(inputs).argmax(dim=1) == labels).float().mean().item()
        print(json.dumps({"result": {"step": step, "accuracy": right}}), flush=True)
    dist.destroy_process_group()
    _leave(STOPPED if stopping else 0)


def _leave(code: int) -> NoReturn:
    """End the process here.  Taking a DDP module apart waits for gloo's threads and keeps the GIL meanwhile; if a thread needs
    it to release a tensor, the process never ends (PyTorch's issue 56297)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="stop after this many (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint in DORM_CHECKPOINT_DIR")
    parser.add_argument(
        "--pace", type=float, default=0.0, help="least seconds of a step by one worker; stands for a heavier model"
    )
    return parser


def _rows(step: int, count: int) -> Tensor:
    """Return the samples of a step: the same for any number of workers."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(step))[:BATCH]


def _agreed(loss: Tensor, *, stop: bool) -> tuple[float, bool]:
    """Return the mean loss, and whether any worker was asked to stop: all workers stop after the same step."""
    both = torch.tensor([loss.item(), float(stop)])
    dist.all_reduce(both)
    return both[0].item() / dist.get_world_size(), both[1].item() > 0


def _save(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Save on rank 0, completely or not at all, and report it once it is on the disk; the others wait, so none leaves
    early."""
    folder = os.environ.get("DORM_CHECKPOINT_DIR")
    if dist.get_rank() == 0 and folder:
        partial = Path(folder) / "torch.pt.partial"
        with partial.open("wb") as file:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(Path(folder) / "torch.pt")
        _append({"checkpoint": step})
    dist.barrier()


def _load(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    saved: dict[str, Any] = torch.load(Path(os.environ["DORM_CHECKPOINT_DIR"]) / "torch.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def _append(line: dict[str, float]) -> None:
    if progress := os.environ.get("DORM_PROGRESS"):
        with Path(progress).open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
