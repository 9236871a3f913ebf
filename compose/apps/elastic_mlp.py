"""A neural network that recognises handwritten digits, resized while it trains.

python3 -m compose.apps.elastic_mlp --epochs 60 --hidden 64 [--pace SECONDS]

Alone, it trains to the end; under an app with `elastic: live` workers join and leave between two steps.  It needs the
distribution `dorm-elastic`.  Started again, it continues from its newest checkpoint.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np

from compose.apps.learning import digits
from compose.apps.learning.heldout import split
from dorm import elastic
from dorm.elastic.solvers import Network, minibatch_sgd


def main() -> None:
    options = _options()
    data = digits.load(os.environ)
    train, test = split(data.images, data.labels)
    network = Network(digits.PIXELS, options.hidden, digits.CLASSES)
    with elastic.join(state={"network": network}) as job:
        steps = minibatch_sgd(
            job,
            network,
            train.inputs,
            train.labels,
            batch=options.batch,
            rate=options.rate,
            epochs=options.epochs,
            chunks=16,
        )
        for step, loss in steps:
            # Stands for a heavier model: each worker computes as long as its share of the batch demands.
            time.sleep(options.pace * len(step.indices) / step.batch)
            if step.number % 100 == 0 and job.leads:
                print(f"step {step.number}: loss {loss:.4f}, {len(job.members)} workers", flush=True)
        if job.leads and not job.stopping:
            print(f"accuracy {np.mean(network.predict(test.inputs) == test.labels):.3f}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Recognise handwritten digits; resized while it trains.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step would take one worker")
    return parser.parse_args()


if __name__ == "__main__":
    main()
