"""A logger for modules that other people's programs import.

An unconfigured structlog prints every line, including debug lines, to standard output, which belongs to the program.  These
lines appear only if the program has configured structlog; otherwise warnings and errors go to `logging`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any


class Logger:
    """Like `structlog.get_logger(name)`, but silent below WARNING until structlog is configured."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **values: Any) -> None:
        if (structlog := _configured()) is not None:
            structlog.get_logger(self._name).debug(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        if (structlog := _configured()) is not None:
            structlog.get_logger(self._name).warning(event, **values)
        else:
            logging.getLogger(self._name).warning("%s %s", event, values)

    def error(self, event: str, **values: Any) -> None:
        if (structlog := _configured()) is not None:
            structlog.get_logger(self._name).error(event, **values)
        else:
            logging.getLogger(self._name).error("%s %s", event, values)

    def exception(self, event: str) -> None:
        """Log an error with the exception that is being handled."""
        if (structlog := _configured()) is not None:
            structlog.get_logger(self._name).exception(event)
        else:
            logging.getLogger(self._name).exception(event)


def _configured() -> Any:
    """Return structlog, None unless it is configured.  It is never imported here: that would cost start-up time."""
    structlog = sys.modules.get("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None
