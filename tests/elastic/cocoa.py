"""Logistic regression on handwritten digits by CoCoA, resized while it trains.  Argument: seconds per round."""

from __future__ import annotations

import sys
import time

import numpy as np
from sklearn.datasets import load_digits

from dorm import elastic
from dorm.elastic.solvers import solve

digits = load_digits()
features, labels = digits.data / 16.0, np.where(digits.target % 2 == 0, 1.0, -1.0)
model = np.zeros(64)

with elastic.join(state={"model": model}) as job:
    for found in solve(job, model, features, labels, l2=1e-3, gap=1e-5, chunks=16):
        last = found
        time.sleep(float(sys.argv[1]))
    if not job.left:
        print("finished", last.members, last.gap, last.objective, flush=True)
