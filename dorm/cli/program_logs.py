"""Logs of the programs themselves (not of apps): for people on a terminal, JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorm.cli.terminal import clean, one_line

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import structlog

_as_json = False

Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="Log more; -vv logs every round.")]
LogJson = Annotated[
    bool, typer.Option("--log-json", envvar="DORM_LOG_JSON", help="Log as lines of JSON, for programs.")
]


def _harmless(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Clean names and reasons in a line for people, as they may be untrusted; a traceback keeps its lines."""
    del logger, method
    return {
        name: (clean(value) if name == "exception" else one_line(value)) if isinstance(value, str) else value
        for name, value in event.items()
    }


def configure(verbose: int, as_json: bool, *, quiet_level: int = logging.INFO, lasts: bool = True) -> None:
    """Log to stderr; `quiet_level` is the lowest level without -v.  `lasts`: whether the program goes on if its output can't be
    written (`dorm.health.printing`), as those do that run until they are stopped."""
    global _as_json
    import structlog

    _as_json = as_json
    if lasts:
        from dorm.health import printing

        printing.last(_lost_lines)

    level = logging.DEBUG if verbose > 1 else logging.INFO if verbose else quiet_level
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json or not sys.stderr.isatty()
        else structlog.dev.ConsoleRenderer(pad_event_to=24)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *(() if isinstance(renderer, structlog.processors.JSONRenderer) else (_harmless,)),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _lost_lines(count: int) -> str:
    """Return the line that says that lines before it are missing."""
    text = "lines of this log were lost: they could not be written"
    if _as_json or not sys.stderr.isatty():
        return json_line(text, level="warning", count=count)
    return f"{text} (count={count})"


def wants_json() -> bool:
    """Return whether this command logs for machines, even if it has not parsed the option yet."""
    return _as_json or "--log-json" in _own_words()


def _own_words() -> list[str]:
    """Return the words of the command line up to `--`: further output is another program's."""
    arguments = sys.argv[1:]
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def wants_document() -> bool:
    """Return whether this command prints a JSON document (`-o json`), even if its options could not be parsed."""
    arguments = _own_words()
    joined = any(word in ("-ojson", "-o=json", "--output=json") for word in arguments)
    return joined or any(pair in (("-o", "json"), ("--output", "json")) for pair in pairwise(arguments))


def json_line(
    message: str, error: BaseException | None = None, *, code: str = "", level: str = "critical", **more: int
) -> str:
    """Return one line of such a log, by default with the reason why the command ends; `error` for a bug, whose traceback it
    includes.  `more` are further fields."""
    line: dict[str, object] = {
        "event": message,
        "level": level,
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        **more,
    }
    if code:
        line["code"] = code
    if error is not None:
        line["exception"] = "".join(traceback.format_exception(error))
    return json.dumps(line)
