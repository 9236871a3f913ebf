"""Lines of a trace and their values.  Errors in a row raise `BrokenRow`, which never leaves this package; its code does."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from dorm_lab.workloads.options import NUMBER
from events.errors import DormError, code_of
from events.quantities import short
from replay.simulator import SimulationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LATEST_S = 4e9
"""The latest time of a trace in seconds: the year 2096 if it counts from 1970, or 126 years on its own clock."""
LONGEST_S = 10 * 366 * 86400.0
"""The longest run time of a job."""
LONGEST_LINE = 1 << 20
"""Characters.  A file without line breaks must not fill the memory."""
MOST_CONTAINERS = 100_000
_MALFORMED, _OUT_OF_RANGE = "trace.value.malformed", "trace.value.out_of_range"
_CALENDAR = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?", re.ASCII)


class BrokenRow(DormError, ValueError):
    """A row that is invalid; the message says why."""

    code = "trace.row.malformed"


class LeftOutRow(DormError, ValueError):
    """A valid row that is not a job to simulate."""

    code = "trace.job.left_out"


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield nonempty lines, with their number from 1; the file may be gzipped.  Raises SimulationError.

    Undecodable bytes become replacement characters: they break one row, not the file."""
    try:
        with _opened(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
                if len(line) == LONGEST_LINE:
                    text = f"{path}:{number}: the line has more than {LONGEST_LINE:,} characters; this is not a trace"
                    raise SimulationError(text, code="trace.line.too_long")
                if text := line.rstrip("\r\n"):
                    yield number, text
    except OSError as error:
        raise SimulationError(f"{path}: {error.strerror or error}", code=code_of(error)) from None
    except ValueError as error:  # Such as a NUL in its name.
        raise SimulationError(f"{short(str(path))}: {error}", code="file.name") from None
    except (EOFError, zlib.error):
        raise SimulationError(f"{path}: the compressed file is truncated or damaged", code="trace.damaged") from None


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")


class Csv:
    """A file with a header: its columns, and then its rows.  One line is one row, also between quotes.

    Raises SimulationError if the header is missing or lacks a column."""

    def __init__(self, path: Path, *, delimiter: str = ",") -> None:
        self.path = path
        self._delimiter = delimiter
        self._lines = lines(path)
        first = next(self._lines, None)
        if first is None:
            text = f"{path}: the file is empty; its first line must name the columns"
            raise SimulationError(text, code="trace.empty")
        try:
            self.columns = [name.strip() for name in self._fields(first[1])]
        except BrokenRow as error:
            raise SimulationError(f"{path}:{first[0]}: {error}", code=error.code) from None
        twice = [name for name in self.columns if self.columns.count(name) > 1]
        if twice:
            text = f"{path}:{first[0]}: column {short(twice[0])} appears twice"
            raise SimulationError(text, code="trace.column.given_twice")

    def column(self, name: str) -> int:
        """Return the index of a column."""
        if name not in self.columns:
            raise SimulationError(
                f"{self.path}: there is no column {short(name)}; it has {', '.join(self.columns)[:200]}",
                code="trace.column.missing",
            )
        return self.columns.index(name)

    @property
    def listed(self) -> str:
        """All columns, as a message names them."""
        return ", ".join(name if name.isprintable() else short(name) for name in self.columns)[:200]

    def refuse_unknown(self, known: Sequence[str]) -> None:
        """Refuse a column that the format does not have, since the file may be of another format."""
        for name in self.columns:
            if name not in known:
                raise SimulationError(
                    f"{self.path}:1: the format has no column {short(name)}; it has {', '.join(known)}",
                    code="trace.column.unknown",
                )

    def rows(self) -> Iterator[tuple[int, list[str] | BrokenRow]]:
        """Yield lines with their fields, or with their error."""
        width = len(self.columns)
        for number, line in self._lines:
            try:
                fields = self._fields(line)
            except BrokenRow as error:
                yield number, error
                continue
            if len(fields) != width:
                yield number, BrokenRow(f"{len(fields)} fields instead of {width}")
            else:
                yield number, fields

    def _fields(self, line: str) -> list[str]:
        if '"' not in line:
            return line.split(self._delimiter)
        try:
            return next(csv.reader([line], delimiter=self._delimiter, strict=True))
        except csv.Error:
            raise BrokenRow("a quote is not closed on its line") from None


def number(text: str, what: str, *, most: float) -> float:
    """Parse a number from 0 to `most`."""
    value = float(text) if NUMBER.fullmatch(text) else None
    if value is None:
        raise BrokenRow(f"{what} is {_shown(text)}, which is not a number", code=_MALFORMED)
    if not value >= 0:
        raise BrokenRow(f"{what} is negative ({_shown(text)})", code=_OUT_OF_RANGE)
    if value > most:
        raise BrokenRow(f"{what} is {_shown(text)}, more than {most:,.0f}", code=_OUT_OF_RANGE)
    return value


def count(text: str, what: str, *, least: int = 1) -> int:
    """Parse a whole number of containers."""
    value = number(text, what, most=MOST_CONTAINERS)
    if value != int(value) or value < least:
        code = _OUT_OF_RANGE if value == int(value) else _MALFORMED
        raise BrokenRow(f"{what} is {_shown(text)}, expected a whole number of at least {least}", code=code)
    return int(value)


def run_time(text: str, what: str) -> float:
    """Parse seconds, more than 0."""
    value = number(text, what, most=LONGEST_S)
    if not value:
        raise BrokenRow(f"{what} is 0", code=_OUT_OF_RANGE)
    return value


def is_calendar(text: str) -> bool:
    """Return whether a text is written as a date, and not as a number."""
    return _CALENDAR.fullmatch(text) is not None


def moment(text: str, what: str) -> float:
    """Return the seconds since 1970 of `2017-10-09 07:01:55`, in UTC if no zone is given."""
    try:
        if not is_calendar(text):
            raise ValueError
        time = datetime.fromisoformat(text)
        seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        message = f"{what} is {_shown(text)}, which is not a time such as 2017-10-09 07:01:55"
        raise BrokenRow(message, code=_MALFORMED) from None
    if not 0 <= seconds <= LATEST_S:
        message = f"{what} is {_shown(text)}, {'before 1970' if seconds < 0 else 'in the far future'}"
        raise BrokenRow(message, code=_OUT_OF_RANGE)
    return seconds


def _shown(text: str) -> str:
    return short(text) if text.strip() else "empty"
