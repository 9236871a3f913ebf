"""What a worker process sets up before NumPy loads: its answer to signals, its record of presence, and a single thread for
linear algebra.

It comes first for these reasons.  As process 1 of a container a program that has no handler yet does not receive SIGTERM
at all, and NumPy takes a tenth of a second to load.  The record begins when the worker does.  And BLAS reads its number of
threads once, when it loads.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING

from compose.apps import presence

if TYPE_CHECKING:
    from types import FrameType

    from compose.apps.presence import Presence

EXIT_STOPPED = 128 + signal.SIGTERM
"""Not 0, which would claim that training is done."""


class Stop:
    """The wish to stop, as SIGTERM or SIGINT brings it.

    Until training begins there is nothing to save, so the process ends there and then, whatever it was waiting for.
    After that the signal only leaves a flag, which the loop carries to all workers; further signals add nothing.
    """

    def __init__(self) -> None:
        self._asked = False
        self._training = False
        # A pipe rather than a threading.Event: setting an Event inside a handler can deadlock with its own waiter.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def install(self) -> None:
        """Take over SIGTERM and SIGINT for the rest of this process's life."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def begin_training(self) -> None:
        """From now on a signal is a flag."""
        self._training = True

    @property
    def asked(self) -> bool:
        """True once a signal came."""
        return self._asked

    def rest(self, seconds: float) -> None:
        """Sleep, but no longer than until a signal comes."""
        if seconds > 0 and not self._asked:
            select.select([self._reader], [], [], seconds)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._training:
            with contextlib.suppress(OSError):
                os.write(2, b"stopped before the first step: there is nothing to save\n")
            os._exit(EXIT_STOPPED)
        self._asked = True
        with contextlib.suppress(OSError):
            os.write(self._writer, b"!")


def prepare() -> tuple[Stop, Presence]:
    """Install the handlers, begin the record, and ask BLAS for one thread (a worker is one unit of its app's demand).  Call
    it before NumPy is imported."""
    stop = Stop()
    stop.install()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    return stop, presence.begin(os.environ)
