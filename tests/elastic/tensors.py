"""A network in PyTorch on generated data, resized while it trains.

Arguments: epochs, seconds that each step takes, what carries the sums ("auto" or "tcp"), and a fault or "": `SLOT:STEP:KIND`
has this member at this step

    kill, stop    die or freeze while the others wait for it in the sum
    inside        die while the sum's data is on its way
    after         die once it has the group's sum, before anyone counts it
    break         lose its process group, and live

In a cluster the second half is slow until a file `go` lies in the shared folder, so that nothing ends before a test is done.
It prints how its sums travelled, by the members of the view, and the weights at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from dorm import elastic
from dorm.elastic.collectives.pytorch import ProcessGroup

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(1000, 20)
y = (x @ torch.randn(20) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
large = torch.ones(5_000_000)
"""Summed along with the gradients if a member dies inside the sum, so that the sum takes a while."""

shared = Path(os.environ.get("DORM_CHECKPOINT_DIR", "/"))
epochs, pace, collectives, fault = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
travelled: list[str] = []


def end(how: int) -> None:
    os.kill(os.getpid(), how)


def fail(job: elastic.Job, kind: str) -> None:
    """Have this process fail in the next sum."""
    if kind in ("kill", "stop"):
        time.sleep(0.3)
        end(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    elif kind == "inside":
        threading.Timer(0.01, end, [signal.SIGKILL]).start()
    elif kind == "after":
        complete = ProcessGroup.sum

        def complete_and_die(*arguments: Any) -> bool:
            complete(*arguments)
            time.sleep(0.3)  # The others have it too.
            end(signal.SIGKILL)
            return True

        ProcessGroup.sum = complete_and_die  # type: ignore[method-assign, assignment]
    elif kind == "break" and job.groups is not None:
        group = job.groups.ready(job.members)
        assert group is not None
        group.close()


def summed(job: elastic.Job, step: elastic.Step, tensors: Any) -> None:
    how = f"{'-'.join(map(str, job.members))}:{step.transport}"
    step.allreduce(tensors)
    if not step.interrupted and travelled[-1:] != [how]:
        travelled.append(how)


with elastic.join({"model": model, "optimizer": optimizer}, collectives=collectives) as job:
    for step in job.steps(len(x), batch=100, epochs=epochs, chunks=16):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[step.indices]), y[step.indices])
        loss.backward()
        if fault.startswith(f"{job.contract.slot}:{step.number}:"):
            fail(job, fault.split(":")[2])
        if fault.endswith("inside") and step.number == int(fault.split(":")[1]):
            summed(job, step, large)
        summed(job, step, [p.grad for p in model.parameters()])
        late = step.epoch >= epochs // 2 and len(shared.parts) > 1 and not (shared / "go").exists()
        time.sleep(1.0 if late else pace)
        optimizer.step()
        step.report(loss=loss.item())
    weights = [float(w) for p in model.parameters() for w in p.detach().reshape(-1)]
    print(json.dumps({"left": job.left, "travelled": travelled, "weights": weights}), flush=True)
