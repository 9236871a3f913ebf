"""The program of the bench's workers: `training.py KIND --data FILE --records FOLDER …`.  It needs NumPy and `dorm.elastic`.

    network   a NumPy network by mini-batch SGD; each step waits for `--device-s`, as for an accelerator
    torch     the same network in PyTorch
    cocoa     logistic regression by CoCoA, until `--target` (duality gap)
    local     the network by local SGD, until `--target` (loss over all data)
    uneven    sums whose parts take a fixed time per sample, twice as long on the slot `--slow`
    compute   one worker that only computes: the same work in each step

Each worker appends a record to its own file for each completed step, using the clock that all processes of a machine
share.  No record waits in memory, so a killed worker leaves all of them.
"""

from __future__ import annotations

import argparse
import os
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm import elastic
from dorm.elastic.contract import Contract
from dorm.elastic.solvers import Network, local_sgd, solve

if TYPE_CHECKING:
    import numpy.typing as npt

    from dorm.elastic.job import Job

__all__ = ["FIRST", "RECORD", "log_name", "main"]

RECORD = struct.Struct("<qddd")
"""Number of the step, monotonic seconds at its end, CPU seconds of the process until then, gap or loss."""
FIRST = -1
"""The step of the record that a worker writes before its loop."""
HIDDEN, CLASSES = 32, 10
BATCH = 256
_REPEATED = 4096
_DIALED_S = 0.3
"""Seconds in which members connect with newcomers that listen already."""
_LOOK_S = 0.02


def log_name(generation: int, slot: int) -> str:
    return f"{generation}-{slot}.steps"


class Log:
    """The file of this worker's steps."""

    def __init__(self, folder: Path, contract: Contract) -> None:
        path = folder / log_name(contract.generation, contract.slot)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._not_counted_s = 0.0
        self.add(FIRST)

    def add(self, step: int, value: float = 0.0) -> None:
        used_s = time.process_time() - self._not_counted_s
        os.write(self._file, RECORD.pack(step, time.monotonic(), used_s, value))

    def not_counted(self, seconds: float) -> None:
        """Exclude CPU time of the measurement."""
        self._not_counted_s += seconds


class Data:
    """A data set as the bench wrote it: features (n, d), classes from 0, labels of -1 and 1."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            self.features: npt.NDArray[np.float64] = arrays["features"]
            self.classes: npt.NDArray[np.int64] = arrays["classes"]
            self.labels: npt.NDArray[np.float64] = arrays["labels"]


def main() -> None:
    options = _options()
    data = Data(options.data)
    contract = Contract.from_environment()
    {
        "network": _network,
        "torch": _torch,
        "cocoa": _cocoa,
        "local": _local,
        "uneven": _uneven,
        "compute": _compute,
    }[options.kind](options, data, contract)


def _network(options: Any, data: Data, contract: Contract) -> None:
    network = Network(data.features.shape[1], HIDDEN, CLASSES)
    with elastic.join(state={"network": network}, contract=contract) as job:
        log = Log(options.records, contract)
        steps = job.steps(data.features, batch=BATCH, epochs=options.epochs, save_every=options.save_every)
        for step in steps:

            def part(samples: npt.NDArray[np.int64]) -> list[Any]:
                gradients, loss = network.gradient(data.features[samples], data.classes[samples])
                return [*gradients, loss]

            *gradients, loss = step.sum_over(part)
            for array, gradient in zip(network.arrays, gradients, strict=True):
                array -= (0.3 / step.batch) * gradient
            if not step.interrupted:
                time.sleep(options.device_s)
                step.report(loss=loss / step.batch)
                log.add(step.number, loss / step.batch)


def _torch(options: Any, data: Data, contract: Contract) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = torch.nn.Linear(data.features.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
    model = torch.nn.Sequential(*layers)
    features, classes = torch.tensor(data.features, dtype=torch.float32), torch.tensor(data.classes)

    def computed(samples: npt.NDArray[np.int64]) -> Any:
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features[samples]), classes[samples])
        loss.backward()
        return loss

    def warm_up() -> None:
        """PyTorch's first forward and backward pass takes longer than all others."""
        computed(np.arange(8))

    if contract.slot == 0:
        warm_up()
    with elastic.join(state={"model": model}, contract=contract, warm_up=warm_up) as job:
        log = Log(options.records, contract)
        for step in job.steps(len(features), batch=BATCH, epochs=options.epochs, save_every=options.save_every):
            loss = computed(step.indices)
            step.allreduce([parameter.grad for parameter in model.parameters()])
            # Plain SGD written out: importing `torch.optim` for a step doubles the time of a start.
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            if not step.interrupted:
                time.sleep(options.device_s)
                step.report(loss=loss.item())
                log.add(step.number, loss.item())


def _cocoa(options: Any, data: Data, contract: Contract) -> None:
    model = np.zeros(data.features.shape[1])
    with elastic.join(state={"model": model}, contract=contract) as job:
        log = Log(options.records, contract)
        rounds = solve(
            job, model, data.features, data.labels,
            l2=options.l2, gap=options.target, rounds=options.epochs, chunks=options.chunks, tasks=options.tasks,
        )  # fmt: skip
        for completed in rounds:
            log.add(completed.number, completed.gap)
            _hold(options, contract, completed.number)
        _report(job, completed.gap)


def _local(options: Any, data: Data, contract: Contract) -> None:
    network = Network(data.features.shape[1], HIDDEN, CLASSES)
    with elastic.join(state={"network": network}, contract=contract) as job:
        log = Log(options.records, contract)
        steps = local_sgd(
            job, network, data.features, data.classes,
            batch=options.batch, local_batch=32, rate=0.1, epochs=options.epochs, chunks=options.chunks,
            tasks=options.tasks,
        )  # fmt: skip
        per_epoch = -(-len(data.classes) // options.batch)
        loss = float("inf")
        for step, _ in steps:
            if (step.number + 1) % per_epoch == 0:
                began = time.process_time()
                loss = network.gradient(data.features, data.classes)[1] / len(data.classes)
                log.not_counted(time.process_time() - began)
            log.add(step.number, loss)
            if loss <= options.target:
                break
            if (step.number + 1) % per_epoch == 0:
                _hold(options, contract, step.epoch)
        _report(job, loss)


def _uneven(options: Any, data: Data, contract: Contract) -> None:
    state = np.zeros(1)
    each_s = options.sample_s * (2.0 if contract.slot == options.slow else 1.0)
    with elastic.join(state={"state": state}, contract=contract) as job:
        log = Log(options.records, contract)
        for step in job.steps(data.features, batch=options.batch, epochs=options.epochs, chunks=options.chunks):
            time.sleep(each_s * len(step.indices))
            step.allreduce(state, op="sum")
            if not step.interrupted:
                log.add(step.number, float(len(step.indices)))


def _compute(options: Any, data: Data, contract: Contract) -> None:
    """Repeated passes over the digits count as one long epoch: real epochs take minutes, and a fact follows each."""
    count = len(data.classes)
    network = Network(data.features.shape[1], HIDDEN, CLASSES)
    with elastic.join(state={"network": network}, contract=contract) as job:
        log = Log(options.records, contract)
        for step in job.steps(count * _REPEATED, batch=count, epochs=options.epochs):

            def part(samples: npt.NDArray[np.int64]) -> list[Any]:
                known = samples % count
                gradients, loss = network.gradient(data.features[known], data.classes[known])
                return [*gradients, loss]

            *gradients, loss = step.sum_over(part)
            for array, gradient in zip(network.arrays, gradients, strict=True):
                array -= (0.1 / step.batch) * gradient
            step.report(loss=loss / step.batch)
            log.add(step.number, loss / step.batch)


def _hold(options: Any, contract: Contract, done: int) -> None:
    """After each round in `--hold`, wait until one more membership is announced, so that resizes take effect in it."""
    if done not in options.hold:
        return
    wanted = 2 + options.hold.index(done)
    while (announcement := contract.announcement()) is not None and announcement.membership < wanted:
        time.sleep(_LOOK_S)
    time.sleep(_DIALED_S)


def _report(job: Job, value: float) -> None:
    if not job.left:
        print(f"finished {value!r}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A worker of `dorm bench elastic`.")
    parser.add_argument("kind", choices=["network", "torch", "cocoa", "local", "uneven", "compute"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--records", type=Path, required=True, help="folder for the records of steps")
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--target", type=float, default=0.0)
    parser.add_argument("--l2", type=float, default=1e-3)
    parser.add_argument("--hold", type=int, nargs="*", default=[])
    parser.add_argument("--device-s", type=float, default=0.0)
    parser.add_argument("--sample-s", type=float, default=0.0)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--save-every", type=float, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
