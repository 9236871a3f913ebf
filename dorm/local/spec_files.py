"""App specs and cluster files on disk: YAML or TOML, by file extension."""

from __future__ import annotations

import shlex
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dorm.local.spec_includes import ENV_FILE_SCHEMA, REQUIREMENTS_FILE_SCHEMA, included
from events.errors import code_of
from events.spec import LARGEST_SPEC, CheckedSpec, SpecError, check_spec, spec_schema
from events.spec.sweeps.expanding import is_sweep
from events.spec.variables import check_names

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_VALUES = 100_000
"""Values in a document with its aliases expanded: a few lines of YAML can expand to more than any memory holds."""


def load_document(path: Path) -> Any:
    """Return the file as plain maps and lists; `-` is standard input (YAML).  Raises SpecError with the file's name."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        return parse(_read(path), toml=path.suffix == ".toml")
    except OSError as error:
        raise SpecError(f"{name}: {error.strerror}", code=code_of(error)) from None
    except SpecError as error:
        raise error.within(name) from None


def _read(path: Path) -> str:
    """Read at most the largest spec, so an endless file ends too.  Raises OSError, SpecError."""
    if str(path) == "-":
        body = sys.stdin.buffer.read(LARGEST_SPEC + 1)
    else:
        with path.open("rb") as file:
            body = file.read(LARGEST_SPEC + 1)
    if len(body) > LARGEST_SPEC:
        text = f"more than {LARGEST_SPEC:,} bytes, which is the most that a spec may have"
        raise SpecError(text, code="file.too_large")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError("this is not a text file (in UTF-8)", code="file.not_text") from None


def parse(text: str, *, toml: bool = False) -> Any:
    """Parse a document.  Raises SpecError."""
    try:
        document = _times_as_text(tomllib.loads(text) if toml else yaml.safe_load(text))
        _count(document, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError(f"not YAML: {where}{error.problem or error.context}", code="file.not_yaml") from None
    except RecursionError:
        raise SpecError("nested too deeply", code="file.too_deep") from None
    except SpecError:
        raise
    # Errors of tomllib and the YAML reader, and values that only look like a date or a number.
    except (yaml.YAMLError, ValueError) as error:
        kind = "TOML" if toml else "YAML"
        raise SpecError(f"not {kind}: {' '.join(str(error).split())}", code=f"file.not_{kind.lower()}") from None
    return document


def _times_as_text(document: Any) -> Any:
    """Both formats have times of their own, which a spec holds as text."""
    start = document.get("start_after") if isinstance(document, dict) else None
    return {**document, "start_after": start.isoformat()} if isinstance(start, date) else document


def _count(value: Any, known: dict[int, int]) -> int:
    """Return the number of values in a document, each counted per reference.  Raises SpecError for too many, or a cycle."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = 0
        parts = value.values() if isinstance(value, dict) else value
        total = 1 + sum(_count(part, known) for part in parts)
        if total > _MOST_VALUES:
            text = f"more than {_MOST_VALUES:,} values, with its aliases written out"
            raise SpecError(text, code="file.too_many_values")
        known[id(value)] = total
    elif known[id(value)] == 0:
        raise SpecError("an alias refers to what it is a part of", code="file.cyclic")
    return known[id(value)]


def file_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec in a file, which may name other files."""
    schema = spec_schema()
    return {
        **schema,
        "properties": {
            **schema["properties"],
            "env_file": ENV_FILE_SCHEMA,
            "requirements_file": REQUIREMENTS_FILE_SCHEMA,
        },
    }


def load_spec(
    path: Path, changes: dict[str, Any] | None = None, *, note: Callable[[str], None] = lambda text: None
) -> CheckedSpec:
    """Return a checked spec, with the contents of the files that it names; `changes` replaces fields, `note` receives notes
    for its author.  Raises SpecError."""
    document = load_document(path)
    name = "standard input" if str(path) == "-" else str(path)
    if is_sweep(document):
        text = f"{name}: this spec is many apps; submit it with `dorm sweep run {shlex.quote(str(path))}`"
        raise SpecError(text, code="spec.is_sweep")
    try:
        if isinstance(document, dict):
            folder = Path() if str(path) == "-" else path.parent
            document = included({**document, **(changes or {})}, folder, note)
        spec = check_spec(document)
        check_names(spec)
        return spec
    except SpecError as error:
        raise error.within(name) from None
