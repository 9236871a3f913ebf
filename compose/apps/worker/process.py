"""Set up a worker process before NumPy loads: signal handlers, the record of presence, and one thread for linear algebra.

This comes first for three reasons.  As process 1 of a container, a program without a handler does not receive SIGTERM, and
NumPy takes a tenth of a second to load.  The record must start when the worker does.  And BLAS reads its number of threads
only once, when it loads.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import TYPE_CHECKING

from compose.apps.worker import presence

if TYPE_CHECKING:
    from types import FrameType

    from compose.apps.worker.presence import Presence

EXIT_STOPPED = 128 + signal.SIGTERM
"""Not 0, which would mean that training is done."""


class Stop:
    """A request to stop, by SIGTERM or SIGINT.

    Until training starts there is nothing to save, so the process ends at once, whatever it was waiting for.  After that the
    signal only sets a flag, which the loop carries to all workers; further signals have no effect.
    """

    def __init__(self) -> None:
        self._asked = False
        self._training = False
        # A pipe rather than a threading.Event: setting an Event inside a handler can deadlock with its own waiter.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def install(self) -> None:
        """Handle SIGTERM and SIGINT for the rest of this process's life."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def begin_training(self) -> None:
        """From now on a signal only sets a flag."""
        self._training = True

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self._asked

    def rest(self, seconds: float) -> None:
        """Sleep until the time is up or a signal comes."""
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
    """Install the handlers, start the record, and set BLAS to one thread (a worker is one unit of its app's demand).  Call it
    before NumPy is imported."""
    stop = Stop()
    stop.install()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    return stop, presence.begin(os.environ)
