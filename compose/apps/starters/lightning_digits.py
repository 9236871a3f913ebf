"""A network on handwritten digits with PyTorch Lightning and its DDP: for the engine `torchrun`.

python3 lightning_digits.py --steps 300

Three things make a Lightning program resizable, and all are in `Resizable` and `StepBatches`: a request to stop is agreed on
by all workers and ends the fit after a saved step, the samples of a step do not depend on the number of workers, and it
continues from its checkpoint if there is one.  So the program needs no `--resume`.

Steps are counted here, not by the Trainer, and weights and optimizer are restored here, too: `ckpt_path` would continue the
Trainer's epoch with as many batches as it had counted, which is right only where a loader always begins at its first batch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import lightning
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

STOPPED = 128 + signal.SIGTERM
BATCH = 360
"""Samples of a step, over all workers."""


class Digits(lightning.LightningModule):
    """A plain Lightning module; it does not depend on Dorm."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        inputs, labels = batch
        # The mean over all workers' losses, which DDP computes, is the mean over the batch, however it is divided.
        return nn.functional.cross_entropy(self.net(inputs), labels, reduction="sum") * self.trainer.world_size / BATCH

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


class StepBatches:
    """The samples of this worker in each step: its part of a batch that is the same for any number of workers.  It begins
    after the steps of the checkpoint."""

    def __init__(self, count: int, done: int, last: int) -> None:
        self._count, self._done, self._last = count, done, last

    def __len__(self) -> int:
        return self._last - self._done

    def __iter__(self) -> Iterator[list[int]]:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        for step in range(self._done + 1, self._last + 1):
            rows = torch.randperm(self._count, generator=torch.Generator().manual_seed(step))[:BATCH]
            yield rows[BATCH * rank // size : BATCH * (rank + 1) // size].tolist()


class Resizable(lightning.Callback):
    """Reports progress to Dorm, saves, and ends the fit after the same step everywhere once any worker is asked to stop."""

    def __init__(self, folder: Path, last: int, pace: float) -> None:
        self._file = folder / "lightning.ckpt"
        self._saved: dict[str, Any] = torch.load(self._file, weights_only=True) if self._file.exists() else {}
        self._last = last
        self._asked = False
        self._pace = pace
        self._began = time.monotonic()
        self.done: int = self._saved.get("done", 0)
        self.stopped = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        # In place of Lightning's own handler, which ends the fit between two batches and saves nothing.
        signal.signal(signal.SIGTERM, self._ask)
        if self._saved:
            module.load_state_dict(self._saved["state_dict"])
            for optimizer, state in zip(trainer.optimizers, self._saved["optimizer_states"], strict=True):
                optimizer.load_state_dict(state)

    def on_save_checkpoint(self, _trainer: lightning.Trainer, _module: object, checkpoint: dict[str, Any]) -> None:
        checkpoint["done"] = self.done

    def on_train_batch_start(self, *_: object) -> None:
        self._began = time.monotonic()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, _module: lightning.LightningModule, outputs: Any, *_: object
    ) -> None:
        self.done += 1
        both = torch.tensor([outputs["loss"].item(), float(self._asked)])
        if trainer.world_size > 1:
            dist.all_reduce(both)
        self.stopped = both[1].item() > 0
        if trainer.is_global_zero and (self.done % 5 == 0 or self.stopped or self.done == self._last):
            report({"step": self.done, "loss": both[0].item() / trainer.world_size})
        if self.done % 50 == 0 or self.stopped or self.done == self._last:
            self._save(trainer)
        trainer.should_stop = trainer.should_stop or self.stopped
        time.sleep(max(0.0, self._pace / trainer.world_size - (time.monotonic() - self._began)))

    def _save(self, trainer: lightning.Trainer) -> None:
        """Save completely or not at all, then report it.  All workers call this; Lightning has rank 0 write."""
        partial = self._file.with_suffix(".partial")
        trainer.save_checkpoint(partial)
        if trainer.is_global_zero:
            partial.replace(self._file)
            report({"checkpoint": self.done})
        trainer.strategy.barrier()


def report(line: dict[str, float]) -> None:
    if progress := os.environ.get("DORM_PROGRESS"):
        with Path(progress).open("a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> NoReturn:
    options = _parser().parse_args()
    warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
    lightning.seed_everything(1, verbose=False)
    torch.set_num_threads(1)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16.0, dtype=torch.float32), torch.tensor(digits.target))
    resizable = Resizable(Path(os.environ.get("DORM_CHECKPOINT_DIR", ".")), options.steps, options.pace)
    done = resizable.done
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,  # of this container
        num_nodes=world,  # that is: containers
        strategy="ddp" if world > 1 else "auto",
        plugins=[TorchElasticEnvironment()] if world > 1 else None,
        max_steps=options.steps - done,
        use_distributed_sampler=False,  # StepBatches divides the samples
        callbacks=[resizable],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    print(f"rank {trainer.global_rank} of {trainer.world_size} begins after step {done}", flush=True)
    module = Digits()
    batches: Any = StepBatches(len(data), done, options.steps)
    trainer.fit(module, DataLoader(data, batch_sampler=batches))
    if trainer.is_global_zero and not resizable.stopped:
        with torch.no_grad():
            right = (module.net(data.tensors[0]).argmax(dim=1) == data.tensors[1]).float().mean().item()
        print(json.dumps({"result": {"step": resizable.done, "accuracy": right}}), flush=True)
    leave(STOPPED if resizable.stopped else 0)


def leave(code: int) -> NoReturn:
    """End the process here.  Taking a DDP module apart waits for gloo's threads and keeps the GIL meanwhile; if a thread needs
    it to release a tensor, the process never ends (PyTorch's issue 56297)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="stop after this many (%(default)s)")
    parser.add_argument(
        "--pace", type=float, default=0.0, help="least seconds of a step by one worker; stands for a heavier model"
    )
    return parser


if __name__ == "__main__":
    main()
