"""The logistic regression of `logistic`, trained with parameter servers: for the engine `ps`.

python3 -m compose.apps.logistic_ps --steps 400 [--resume]
"""

from __future__ import annotations

import sys
from dataclasses import replace

if __name__ == "__main__":
    from compose.apps.worker import process

    stop, _ = process.prepare()  # before NumPy loads

from compose.apps import logistic
from compose.apps.served import program

PROGRAM = replace(logistic.PROGRAM, summary="Multinomial logistic regression on parameter servers.")
"""The same name, so that the two programs can resume each other's checkpoints."""

if __name__ == "__main__":
    sys.exit(program.main(PROGRAM, stop))
