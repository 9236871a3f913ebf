"""App specs and cluster files on disk: YAML or TOML, by the file's ending."""

from __future__ import annotations

import sys
import tomllib
from typing import TYPE_CHECKING, Any

import yaml

from events.spec import LARGEST_SPEC, AppSpec, SpecError, check_spec

if TYPE_CHECKING:
    from pathlib import Path


def load_document(path: Path) -> Any:
    """The file as plain maps and lists; `-` is standard input (YAML).  Raises SpecError with the file's name."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: this is not a text file") from None
    if len(text.encode()) > LARGEST_SPEC:
        raise SpecError(f"{path}: {len(text.encode()):,} bytes; a spec has at most {LARGEST_SPEC:,}")
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: not TOML: {error}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply") from None


def load_spec(path: Path, changes: dict[str, Any] | None = None) -> AppSpec:
    """A checked spec; `changes` replaces fields.  Raises SpecError."""
    document = load_document(path)
    if isinstance(document, dict):
        document = {**document, **(changes or {})}
    try:
        return check_spec(document)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
