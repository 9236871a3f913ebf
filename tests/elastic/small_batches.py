"""Sums over batches that are too small for all workers.  Argument: epochs.

It prints the bits of what `sum_over` gave, sums that `allreduce` gave, and the fewest samples that it computed in a step.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from dorm import elastic

data = np.random.default_rng(0).normal(size=51)
exact, means, fewest = np.zeros(2), 0.0, 51


def part(samples: Any) -> Any:
    return np.array([np.sum(np.sin(data[samples] + exact[0])), float(len(samples))])


with elastic.join(state={"exact": exact}) as job:
    for step in job.steps(len(data), batch=4, epochs=int(sys.argv[1]), chunks=16, least=2):
        total = step.sum_over(part)
        mean = step.allreduce(float(np.mean(data[step.indices])))
        count = step.allreduce(len(step.indices), op="sum")
        exact += total / step.batch
        means += round(mean * 1e6)
        fewest = min(fewest, len(step.indices))
        assert count == step.batch, (count, step.batch)
        step.report(loss=mean)
print(exact.tobytes().hex())
print(means)
print("fewest", fewest, flush=True)
