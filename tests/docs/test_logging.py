"""The page about logs names every field that the code logs, and every line at level `error`."""

from __future__ import annotations

import ast
import functools
import gc
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "logging.md").read_text()
LEVELS = ("debug", "info", "warning", "error")
_CALLS = re.compile(rf"\.(?:{'|'.join(LEVELS)})\(")


class Line(NamedTuple):
    level: str
    event: str | None
    """None if it is not a constant."""
    fields: tuple[str, ...]


@functools.cache
def lines() -> list[Line]:
    gc.disable()  # Syntax trees are many objects and no garbage.
    try:
        return list(_read())
    finally:
        gc.enable()


def _read() -> Iterator[Line]:
    for top in ("agents", "dorm", "events", "replay"):
        for path in (ROOT / top).rglob("*.py"):
            text = path.read_text()
            if not _CALLS.search(text):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call) and (line := _line(node)) is not None:
                    yield line


def _line(call: ast.Call) -> Line | None:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS or not call.args:
        return None
    logger = function.value
    if isinstance(logger, ast.Call):
        if "get_logger" not in ast.unparse(logger):
            return None
    elif ast.unparse(logger) not in ("_log", "log", "self._log"):
        return None
    event = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
    fields = tuple(keyword.arg for keyword in call.keywords if keyword.arg is not None)
    return Line(function.attr, event if isinstance(event, str) else None, fields)


def test_the_page_is_complete() -> None:
    found = lines()
    assert len(found) > 80
    table = PAGE.split("## Fields")[1].split("## Lines")[0]
    documented = set(
        re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("|")))
    )
    missing = {field for line in found for field in line.fields} - documented
    assert missing == set(), f"docs/logging.md names no fields {', '.join(sorted(missing))}"


def test_every_error_links_to_its_explanation() -> None:
    table = PAGE.split("## Lines at level `error`")[1]
    told = {row.split("|")[1].strip().strip("`").strip() for row in table.splitlines() if row.startswith("| `")}
    logged = {line.event for line in lines() if line.level == "error" and line.event and "%" not in line.event}
    assert logged == told, "the table of docs/logging.md has every line at level error, and no other"
