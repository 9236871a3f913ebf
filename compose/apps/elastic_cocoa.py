"""Logistic regression by CoCoA that asks for fewer workers once these suffice.

python3 -m compose.apps.elastic_cocoa --gap 1e-3 [--pace SECONDS]

It distinguishes small handwritten digits (below 5) from large ones.  Early on the duality gap falls fastest with many workers,
late with few, so the job asks its cluster for half of them when the gap falls more slowly than before.  Under an app with
`elastic: live` the others continue to train while workers leave.  It needs the distribution `dorm-elastic`.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

from compose.apps.learning import digits
from dorm import elastic
from dorm.elastic.solvers import solve


def main() -> None:
    options = _options()
    data = digits.load(os.environ)
    features = np.asarray(data.images, dtype=np.float64)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.where(np.asarray(data.labels) < 5, 1.0, -1.0)
    model = np.zeros(features.shape[1])
    with elastic.join(state={"model": model}) as job:
        rounds = solve(
            job,
            model,
            features,
            labels,
            l2=options.l2,
            gap=options.gap,
            rounds=options.rounds,
            chunks=16,
            scale_in=True,
        )
        for round_ in rounds:
            # Stands for more data: each worker computes as long as its share of them demands.
            time.sleep(options.pace / round_.members)
            if job.leads and round_.number % 10 == 0:
                print(f"round {round_.number}: gap {round_.gap:.3g}, {round_.members} workers", flush=True)
        if job.leads and not job.stopping:
            print(f"accuracy {np.mean(np.sign(features @ model) == labels):.3f}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Logistic regression that scales in by itself.")
    parser.add_argument("--gap", type=float, default=1e-3)
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a round would take one worker")
    return parser.parse_args()


if __name__ == "__main__":
    main()
