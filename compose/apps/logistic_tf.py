"""The logistic regression of `logistic`, for the engine `tensorflow`: it reads its place from TF_CONFIG.

python3 -m compose.apps.logistic_tf --steps 400 [--resume]

It needs no TensorFlow.  It checks TF_CONFIG as TensorFlow would, then trains over the addresses that it found there.
"""

from __future__ import annotations

import sys
from dataclasses import replace

if __name__ == "__main__":
    from compose.apps.worker import process

    stop, presence = process.prepare()  # before NumPy loads

from compose.apps import logistic
from compose.apps.learning import training
from compose.apps.worker import tf_config

PROGRAM = replace(logistic.PROGRAM, summary="Multinomial logistic regression over the workers of TF_CONFIG.")

if __name__ == "__main__":
    sys.exit(training.main(PROGRAM, stop, presence, read_place=tf_config.read_place))
