"""Logistic regression on generated data, resized while it trains.  Arguments: epochs, seconds that each step takes."""

from __future__ import annotations

import sys
import time
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


with elastic.join(state={"weights": weights}) as job:
    for step in job.steps(samples, batch=100, epochs=int(sys.argv[1]), chunks=16):
        gradient, loss = step.sum_over(gradient_and_loss)
        time.sleep(float(sys.argv[2]))
        weights -= 0.5 * gradient / step.batch
        step.report(loss=loss / step.batch)
    how = "left" if job.left else "stopped" if job.stopping else "finished"
    print(how, weights.tobytes().hex(), flush=True)
