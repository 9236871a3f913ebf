"""Logistic regression on generated data, resized while it trains.  Arguments: epochs, seconds that each step takes.

In a cluster its second half is slow until a file `go` lies in the shared folder, so that nothing ends before a test is done.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dorm import elastic

generator = np.random.default_rng(0)
samples = generator.normal(size=(1000, 20))
labels = (samples @ generator.normal(size=20) > 0).astype(float)
weights = np.zeros(20)


def gradient_and_loss(indices: Any) -> list[Any]:
    predicted = 1 / (1 + np.exp(-samples[indices] @ weights))
    loss = -np.sum(np.log(np.where(labels[indices] > 0, predicted, 1 - predicted) + 1e-12))
    return [samples[indices].T @ (predicted - labels[indices]), loss]


shared = Path(os.environ.get("DORM_CHECKPOINT_DIR", "/"))
epochs = int(sys.argv[1])

with elastic.join(state={"weights": weights}) as job:
    for step in job.steps(samples, batch=100, epochs=epochs, chunks=16):
        gradient, loss = step.sum_over(gradient_and_loss)
        late = step.epoch >= epochs // 2 and len(shared.parts) > 1 and not (shared / "go").exists()
        time.sleep(1.0 if late else float(sys.argv[2]))
        weights -= 0.5 * gradient / step.batch
        step.report(loss=loss / step.batch)
    how = "left" if job.left else "stopped" if job.stopping else "finished"
    print(how, weights.tobytes().hex(), flush=True)
