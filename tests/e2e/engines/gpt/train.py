"""Trains a character-level GPT with DistributedDataParallel; four data-loader workers in each process prepare its batches.

On SIGTERM all processes agree on the last step, rank 0 writes a snapshot, and they end with exit code 143.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "The quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 40
BLOCK, WIDTH, BATCH = 16, 32, 24
asked: list[int] = []


class Characters(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of the text, each with the same piece one character later."""

    def __init__(self) -> None:
        letters = sorted(set(TEXT))
        self.letters = len(letters)
        self.data = torch.tensor([letters.index(letter) for letter in TEXT])

    def __len__(self) -> int:
        return len(self.data) - BLOCK

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.data[at : at + BLOCK], self.data[at + 1 : at + BLOCK + 1]


class Steps(Sampler[list[int]]):
    """This rank's part of each step's batch, from the first step that is not done: the same batches for any number of
    ranks."""

    def __init__(self, samples: int, first: int, last: int, rank: int, ranks: int) -> None:
        self.samples, self.first, self.last, self.rank, self.ranks = samples, first, last, rank, ranks

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first, self.last):
            rows = torch.randint(self.samples, (BATCH,), generator=torch.Generator().manual_seed(step)).tolist()
            yield rows[BATCH * self.rank // self.ranks : BATCH * (self.rank + 1) // self.ranks]


class GPT(nn.Module):
    """One block of masked self-attention is enough to learn a sentence."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, rows: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK)
        hidden: Tensor = self.block(self.letter(rows) + self.place(torch.arange(BLOCK)), src_mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def report(**line: float) -> None:
    if name := os.environ.get("DORM_PROGRESS"):
        with open(name, "a") as file:
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pace", type=float, default=0.0, help="least seconds of a step; stands for a larger model")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = Characters()
    model = DistributedDataParallel(GPT(data.letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    snapshot, step = Path(os.environ["SNAPSHOTS"]) / "gpt.pt", 0
    if snapshot.exists():
        saved = torch.load(snapshot, weights_only=True)
        step = saved["step"]
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    print(f"rank {rank} of {ranks} begins after step {step}", flush=True)

    def save() -> None:
        if rank == 0:
            torch.save(
                {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()},
                snapshot.with_suffix(".partial"),
            )
            snapshot.with_suffix(".partial").rename(snapshot)
            report(checkpoint=step)
        dist.barrier()

    stopping = False
    loader = DataLoader(data, batch_sampler=Steps(len(data), step, options.steps, rank, ranks), num_workers=4)
    for rows, targets in loader:
        began = time.monotonic()
        loss = cross_entropy(model(rows).flatten(0, 1), targets.flatten(), reduction="sum") * ranks / BATCH / BLOCK
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        both = torch.tensor([loss.item(), float(bool(asked))])
        dist.all_reduce(both)
        stopping = both[1].item() > 0
        if rank == 0:
            report(step=step, loss=both[0].item() / ranks)
        if stopping:
            break
        time.sleep(max(0.0, options.pace - (time.monotonic() - began)))
    save()
    print(f"rank {rank} of {ranks} saved step {step}", flush=True)
    os._exit(143 if stopping else 0)  # taking a DDP module apart may wait for gloo's threads without end


if __name__ == "__main__":
    main()
