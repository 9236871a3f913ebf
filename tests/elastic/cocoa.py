"""Logistic regression on handwritten digits by CoCoA, resized while it trains.  Argument: seconds per round."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from compose.apps.learning import digits
from dorm import elastic
from dorm.elastic.solvers import solve

data = digits.load(os.environ)
features, labels = data.images, np.where(data.labels % 2 == 0, 1.0, -1.0)
model = np.zeros(64)

with elastic.join(state={"model": model}) as job:
    for found in solve(job, model, features, labels, l2=1e-3, gap=1e-5, chunks=16):
        last = found
        time.sleep(float(sys.argv[1]))
    if not job.left:
        print("finished", last.members, last.gap, last.objective, flush=True)
