"""App specs and cluster files on disk: YAML or TOML, by the file's ending."""

from __future__ import annotations

import sys
import tomllib
from typing import TYPE_CHECKING, Any

import yaml

from events.spec import LARGEST_SPEC, AppSpec, SpecError, check_spec

if TYPE_CHECKING:
    from pathlib import Path

_MOST_VALUES = 100_000
"""Values in a document with its aliases written out: a few lines of YAML can stand for more than any memory holds."""


def load_document(path: Path) -> Any:
    """The file as plain maps and lists; `-` is standard input (YAML).  Raises SpecError with the file's name."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        return parse(_read(path), toml=path.suffix == ".toml")
    except OSError as error:
        raise SpecError(f"{name}: {error.strerror}") from None
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None


def _read(path: Path) -> str:
    """No more than a spec may have, so that an endless file ends too.  Raises OSError, SpecError."""
    if str(path) == "-":
        body = sys.stdin.buffer.read(LARGEST_SPEC + 1)
    else:
        with path.open("rb") as file:
            body = file.read(LARGEST_SPEC + 1)
    if len(body) > LARGEST_SPEC:
        raise SpecError(f"more than {LARGEST_SPEC:,} bytes, which is the most that a spec may have")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError("this is not a text file (in UTF-8)") from None


def parse(text: str, *, toml: bool = False) -> Any:
    """The document in a text.  Raises SpecError."""
    try:
        document = tomllib.loads(text) if toml else yaml.safe_load(text)
        _count(document, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError(f"not YAML: {where}{error.problem or error.context}") from None
    except RecursionError:
        raise SpecError("nested too deeply") from None
    except SpecError:
        raise
    # tomllib's and the reader's own errors, and values that only look like a date or a number.
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"not {'TOML' if toml else 'YAML'}: {' '.join(str(error).split())}") from None
    return document


def _count(value: Any, known: dict[int, int]) -> int:
    """Values in a document, each as often as it is referred to.  Raises SpecError for too many, or for no end of them."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = 0
        parts = value.values() if isinstance(value, dict) else value
        total = 1 + sum(_count(part, known) for part in parts)
        if total > _MOST_VALUES:
            raise SpecError(f"more than {_MOST_VALUES:,} values, with its aliases written out")
        known[id(value)] = total
    elif known[id(value)] == 0:
        raise SpecError("an alias refers to what it is a part of")
    return known[id(value)]


def load_spec(path: Path, changes: dict[str, Any] | None = None) -> AppSpec:
    """A checked spec; `changes` replaces fields.  Raises SpecError."""
    document = load_document(path)
    if isinstance(document, dict):
        document = {**document, **(changes or {})}
    try:
        return check_spec(document)
    except SpecError as error:
        raise SpecError(f"{'standard input' if str(path) == '-' else path}: {error}") from None
