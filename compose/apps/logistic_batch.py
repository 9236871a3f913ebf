"""Multinomial logistic regression on handwritten digits, with the batch size that Dorm chooses.

python3 -m compose.apps.logistic_batch --steps 4000 [--resume]
"""

from __future__ import annotations

import sys
from dataclasses import replace

if __name__ == "__main__":
    from compose.apps.worker import process

    stop, presence = process.prepare()  # before NumPy loads

from compose.apps import logistic
from compose.apps.learning import training
from compose.apps.learning.model import Size
from compose.apps.learning.tuned import TunedWorker

PROGRAM = replace(
    logistic.PROGRAM,
    name="logistic_batch",
    summary="Multinomial logistic regression on handwritten digits, with the batch size that Dorm chooses (DORM_BATCH).",
    batch=48,
    learning_rate=0.02,
    sizes={"fixed-part": Size(50, 100, "percent of --pace that a step takes whatever its batch size is")},
)

if __name__ == "__main__":
    sys.exit(training.main(PROGRAM, stop, presence, worker=TunedWorker))
