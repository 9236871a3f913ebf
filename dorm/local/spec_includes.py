"""Fields of a spec file that name other files: the client reads them, and the log gets their contents.

    env_file             variables in the syntax of `.env` files, for `env`; variables of `env` itself come first
    requirements_file    a requirements.txt, or a uv.lock beside its pyproject.toml, for `requirements`

Paths are relative to the spec file.  A variable that looks like a secret is left out, with a note: everyone who reads the log
would see it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from dotenv.parser import parse_stream

from dorm.local.files_beside import read_beside
from dorm.local.requirements import requirements_of
from events.quantities import short
from events.spec import SpecError
from events.spec.checking import why_secret

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LARGEST_ENV_FILE = 64 * 1024
"""Bytes of all files of variables together."""
_MOST_FILES = 16
INCLUDED = ("env_file", "requirements_file")
"""The fields that name files."""
ENV_FILE_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": _MOST_FILES}],
    "description": "files with variables, NAME=VALUE in each line as in .env files, beside the spec; in spec files only: the "
    "client reads them and sends their variables in `env`, except for those that look like secrets",
    "examples": [".env"],
}


REQUIREMENTS_FILE_SCHEMA: dict[str, Any] = {
    "type": "string",
    "description": "a requirements.txt, or a uv.lock with its pyproject.toml, beside the spec; in spec files only: the client "
    "reads it and sends its lines in `requirements`",
    "examples": ["requirements.txt", "uv.lock"],
}


def included(document: dict[str, Any], folder: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Return a spec without fields that name files: their contents are in other fields.  `folder` is that of the spec file;
    `note` receives notes for its author.  Raises SpecError."""
    rest = {name: value for name, value in document.items() if name not in INCLUDED}
    if "requirements_file" in document:
        if "requirements" in rest:
            text = "requirements_file: the spec has requirements as well; leave one of them out"
            raise SpecError(text, code="spec.requirements_file.twice")
        rest["requirements"] = requirements_of(document["requirements_file"], folder)
    if "env_file" not in document:
        return rest
    env = rest.get("env", {})
    if not isinstance(env, dict):
        return rest  # The check of the spec reports the error.
    return {**rest, "env": {**_variables(_paths(document["env_file"]), folder, set(env), note), **env}}


def _paths(given: Any) -> list[str]:
    paths = [given] if isinstance(given, str) else given
    if not isinstance(paths, list) or not all(isinstance(path, str) and path and "\0" not in path for path in paths):
        raise SpecError(
            f"env_file: expected a path such as .env, or a list of paths, got {short(given)}",
            code="spec.env_file.wrong_type",
        )
    if len(paths) > _MOST_FILES:
        raise SpecError(f"env_file: {len(paths)} files; at most {_MOST_FILES} are taken", code="spec.env_file.too_many")
    return paths


def _variables(paths: list[str], folder: Path, own: set[str], note: Callable[[str], None]) -> dict[str, str]:
    found: dict[str, str] = {}
    left = LARGEST_ENV_FILE
    for path in paths:
        text = read_beside(folder, path, left, "env_file")
        left -= len(text.encode())
        for name, value in _parsed(path, text).items():
            why = why_secret(name, value) if name not in own else ""
            if why:
                note(
                    f"{path}: {name} is left out, because it {why}, and all who read the log would see it; put it on the "
                    f"nodes and name it in `secrets`, such as `secrets: {{{name}_FILE: {name.lower()}}}`"
                )
            else:
                found[name] = value
    return found


def _parsed(path: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        line = binding.original.line
        if binding.error:
            raise SpecError(f"env_file: {path}: line {line}: expected NAME=VALUE", code="spec.env_file.malformed")
        if binding.key is not None:
            if binding.value is None:
                raise SpecError(
                    f"env_file: {path}: line {line}: {binding.key[:60]} has no value; write {binding.key[:60]}=",
                    code="spec.env_file.no_value",
                )
            found[binding.key] = binding.value
    return found
