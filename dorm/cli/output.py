"""`-o table|wide|json|yaml`, the same for every command that prints things."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import IO, Annotated, Any

import msgspec
import typer
import yaml
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dorm.cli.terminal import clean, in_document, one_line
from events.instants import ago as ago


class Format(StrEnum):
    """How to print."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="Output format.", envvar="DORM_OUTPUT")]


class SheetFormat(StrEnum):
    """How to print a result that may become a sheet."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    csv = "csv"


SheetOutput = Annotated[SheetFormat, typer.Option("--output", "-o", help="Output format.", envvar="DORM_OUTPUT")]


class SafeConsole(Console):
    """Never draws untrusted text as control characters or as markup."""

    def __init__(
        self, *, file: IO[str] | None = None, stderr: bool = False, width: int | None = None, soft_wrap: bool = True
    ) -> None:
        super().__init__(
            file=file, stderr=stderr, width=width, soft_wrap=soft_wrap, highlight=False, markup=False, emoji=False
        )

    def print(self, *objects: Any, **how: Any) -> None:
        """Print; a Text is one line after any leading empty ones, so untrusted text can't start a line of its own."""
        super().print(*(_in_one_line(each) if isinstance(each, Text) else each for each in objects), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Clean everything that is drawn; the cursor movements of rich's own (progress bars) are not text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(clean(segment.text), segment.style)


def _in_one_line(text: Text) -> Text:
    first = len(text.plain) - len(text.plain.lstrip("\n"))
    if "\n" not in text.plain[first:]:
        return text
    return Text("\n" * first).append_text(Text(r"\n").join(text[first:].split("\n", allow_blank=True)))


console = SafeConsole()
progress_console = SafeConsole(stderr=True, soft_wrap=False)

_LEAST_NOTE = 32


@contextlib.contextmanager
def solver_prints_elsewhere() -> Iterator[None]:
    """Redirect the output of native code to stderr: the solver sometimes writes a line of its own, which no option disables
    and which must not end up in JSON output.  Nothing else may be printed to stdout meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C's own buffer, which would be written much later.
        os.dup2(kept, 1)
        os.close(kept)


Column = tuple[str, str]
"""Heading, and attribute or key of the row."""


def show(
    rows: Sequence[Any],
    columns: Sequence[Column],
    output: Format,
    *,
    wide: Sequence[Column] = (),
    note: Column | None = None,
) -> None:
    """Print rows (structs or maps) as a table of some columns, or whole as JSON or YAML.

    `note` is a last column of long text.  It is cut to the terminal's width; if next to nothing would be left of it, the notes
    follow below the table.  `-o wide` and a pipe show it whole.
    """
    plain = [msgspec.to_builtins(row) for row in rows]
    if output in (Format.json, Format.yaml):
        show_document(plain, output)
        return
    shown = [*columns, *(wide if output is Format.wide else ())]
    if note is None or not any(row.get(note[1]) for row in plain):
        print_table(plain, shown)
    elif output is Format.wide or not console.is_terminal:
        print_table(plain, [*shown, note])
    else:
        _print_with_notes(plain, shown, note)


def _print_with_notes(rows: list[dict[str, Any]], columns: Sequence[Column], note: Column) -> None:
    left = console.width - _width(table(rows, columns)) - 2
    if left >= _LEAST_NOTE:
        print_table([{**row, note[1]: _cut(one_line(str(row[note[1]] or "")), left)} for row in rows], [*columns, note])
        return
    print_table(rows, columns)
    first = columns[0][1]
    for row in rows:
        if row.get(note[1]):
            console.print(
                Text(f"\n{one_line(str(row[first]))}: ", style="bold").append(
                    one_line(str(row[note[1]])), style="not bold"
                ),
                soft_wrap=False,
            )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def show_document(document: Any, output: Format) -> None:
    """Print one document as JSON or YAML."""
    plain = msgspec.to_builtins(document)
    if output is Format.yaml:
        sys.stdout.write(as_yaml(plain))
    else:
        sys.stdout.write(in_document(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()) + "\n")


def as_yaml(plain: Any) -> str:
    """Dump YAML with characters beyond ASCII unescaped, if none of them can affect a terminal."""
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text if in_document(text) == text else yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)


def print_table(rows: Iterable[dict[str, Any]], columns: Sequence[Column]) -> None:
    """Print as wide as needed: a narrower terminal folds lines, and a pipe gets them whole."""
    drawn = table(rows, columns)
    # `print(width=…)` would be cut to the terminal's width.
    wide = SafeConsole(file=console.file, width=max(console.width, _width(drawn)), soft_wrap=False)
    wide.print(_Unpadded(drawn), crop=False)


class _Unpadded:
    """A table whose lines end with their last word, not with the spaces that fill the last column."""

    def __init__(self, drawn: Table) -> None:
        self._drawn = drawn

    def __rich_console__(self, drawing: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in Segment.split_lines(drawing.render(self._drawn, options)):
            segments = list(line)
            while segments and not segments[-1].text.rstrip(" "):
                segments.pop()
            if segments:
                last = segments.pop()
                yield from segments
                yield Segment(last.text.rstrip(" "), last.style)
            yield Segment.line()


def _width(drawn: Table) -> int:
    return console.measure(drawn, options=console.options.update(width=10_000)).maximum


def table(rows: Iterable[dict[str, Any]], columns: Sequence[Column]) -> Table:
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading, _ in columns:
        drawn.add_column(heading, no_wrap=True)
    for row in rows:
        drawn.add_row(*(cell(row.get(key)) for _, key in columns))
    return drawn


_PHASE_STYLES = {
    "running": "green", "completed": "green", "waiting": "yellow", "starting": "cyan", "adjusting": "cyan",
    "stopping": "cyan", "retrying": "yellow", "failed": "red", "cancelled": "dim", "lost": "red", "up": "green",
    "draining": "yellow", "maintenance": "yellow", "left": "dim",
}  # fmt: skip


def cell(value: Any) -> Text:
    """Format a value for people, in one line; never markup, since names and reasons come from users."""
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.4g}")
    if isinstance(value, dict):
        return Text(one_line(", ".join(f"{key}={item}" for key, item in value.items())) or "-")
    text = one_line(str(value))
    return Text(text, style=_PHASE_STYLES.get(text, ""))


def counted(number: int, what: str) -> str:
    """Return `1 app`, `2 apps`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def write_csv(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as CSV (RFC 4180), with the columns of all rows in the order in which they come."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _field(value) for name, value in row.items()})


def _field(value: Any) -> Any:
    """Return a value that no spreadsheet takes for a formula, and no terminal for a command."""
    if isinstance(value, dict | list):
        value = msgspec.json.encode(value).decode()
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
