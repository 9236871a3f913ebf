"""The logistic regression of `logistic`, for the engine `mpi`: its ranks sum over MPI.  It needs mpi4py.

python3 -m compose.apps.logistic_mpi --steps 400 [--resume]
"""

from __future__ import annotations

import sys
from dataclasses import replace

if __name__ == "__main__":
    from compose.apps.worker import process

    stop, presence = process.prepare()  # before NumPy loads

from compose.apps import logistic
from compose.apps.learning import training

PROGRAM = replace(logistic.PROGRAM, summary="Multinomial logistic regression over MPI.")

if __name__ == "__main__":
    from compose.apps.ring import over_mpi  # joins MPI's world when it is imported

    sys.exit(training.main(PROGRAM, stop, presence, read_place=over_mpi.read_place, join=over_mpi.join))
