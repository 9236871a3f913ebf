"""A small language model with Hugging Face's `Trainer`, trained from a configuration: for the engine `torchrun`.

python3 transformers_text.py --steps 200

Nothing is downloaded: the model begins with random weights, its tokens are bytes, and its text is the source of Python's own
standard library.  `Resizable`, `split_batches` and `last_checkpoint` make a script with a `Trainer` resizable.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

STOPPED = 128 + signal.SIGTERM
BATCH = 24
"""Sequences of a step, over all workers."""
LENGTH = 64
"""Bytes of a sequence."""
TEXT = ("argparse.py", "ast.py", "datetime.py", "inspect.py", "pathlib.py", "subprocess.py", "tarfile.py", "typing.py")


class Text(Dataset[dict[str, Tensor]]):
    """Sequences of bytes, in order; the model learns to predict each from those before it."""

    def __init__(self, folder: Path) -> None:
        files = [folder / name for name in TEXT if (folder / name).exists()]
        whole = b"\n".join(file.read_bytes() for file in files)
        self._rows = torch.tensor(list(whole[: len(whole) // LENGTH * LENGTH]), dtype=torch.int64).view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"input_ids": self._rows[number], "labels": self._rows[number]}


class Resizable(TrainerCallback):
    """Reports progress to Dorm, and has all workers save and end after the same step once any of them is asked to stop."""

    def __init__(self, pace: float) -> None:
        self._asked = False
        self._pace = pace
        self._began = time.monotonic()
        self.stopped = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        any_asked = torch.tensor(float(self._asked))
        if dist.is_initialized():
            dist.all_reduce(any_asked)
        if any_asked.item() > 0:
            self.stopped = True
            control.should_save = control.should_log = control.should_training_stop = True
        time.sleep(max(0.0, self._pace / args.world_size - (time.monotonic() - self._began)))
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if state.is_world_process_zero and "loss" in (logs or {}):
            report({"step": state.global_step, "loss": float((logs or {})["loss"])})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            report({"checkpoint": state.global_step})


def report(line: dict[str, float]) -> None:
    if progress := os.environ.get("DORM_PROGRESS"):
        with Path(progress).open("a") as file:
            file.write(json.dumps(line) + "\n")


def last_checkpoint(folder: str) -> str | None:
    """Return the newest complete checkpoint: the Trainer writes `trainer_state.json` after the model."""
    for number in sorted(
        (int(path.name.rpartition("-")[2]) for path in Path(folder).glob("checkpoint-*")), reverse=True
    ):
        if (path := Path(folder) / f"checkpoint-{number}" / "trainer_state.json").exists():
            return str(path.parent)
    return None


def main() -> NoReturn:
    options = _parser().parse_args()
    set_seed(1)
    torch.set_num_threads(1)
    folder = os.environ.get("DORM_CHECKPOINT_DIR", "checkpoints")
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, bos_token_id=0, eos_token_id=0, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,  # otherwise, each number of workers draws different numbers
        )
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=options.steps,
        per_device_train_batch_size=BATCH,
        accelerator_config={
            "split_batches": True
        },  # BATCH counts the samples of all workers: each takes its part of the same batch
        learning_rate=2e-3,
        warmup_steps=20,
        logging_steps=10,
        save_steps=50,
        save_total_limit=2,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
        disable_tqdm=True,
        report_to=[],
        seed=1,
    )
    resizable = Resizable(options.pace)
    trainer = Trainer(model=model, args=arguments, train_dataset=Text(Path(os.__file__).parent), callbacks=[resizable])
    saved = last_checkpoint(folder)
    print(f"rank {arguments.process_index} of {arguments.world_size} begins with {saved or 'new weights'}", flush=True)
    result = trainer.train(resume_from_checkpoint=saved)
    if arguments.process_index == 0 and not resizable.stopped:
        bits = result.training_loss / math.log(2)
        print(json.dumps({"result": {"step": trainer.state.global_step, "bits_per_byte": round(bits, 3)}}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    leave(STOPPED if resizable.stopped else 0)


def leave(code: int) -> NoReturn:
    """End the process here.  Taking a DDP module apart waits for gloo's threads and keeps the GIL meanwhile; if a thread needs
    it to release a tensor, the process never ends (PyTorch's issue 56297)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="stop after this many (%(default)s)")
    parser.add_argument(
        "--pace", type=float, default=0.0, help="least seconds of a step by one worker; stands for a heavier model"
    )
    return parser


if __name__ == "__main__":
    main()
