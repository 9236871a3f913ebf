"""A logger for what programs of other people import.

An unconfigured structlog prints every line, debugging too, to standard output, which belongs to the program.  These lines
appear only where the program has configured structlog; where it has not, warnings and errors go to `logging`.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog


class Logger:
    """What `structlog.get_logger(name)` gives, silent below WARNING until structlog is configured."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **values: Any) -> None:
        if structlog.is_configured():
            structlog.get_logger(self._name).debug(event, **values)

    def exception(self, event: str) -> None:
        """An error, with the exception that is being handled."""
        if structlog.is_configured():
            structlog.get_logger(self._name).exception(event)
        else:
            logging.getLogger(self._name).exception(event)
