"""App specs and cluster files on disk: YAML or TOML, by file extension."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dorm.local.spec_includes import ENV_FILE_SCHEMA, INCLUDED, REQUIREMENTS_FILE_SCHEMA, included
from events.documents import ANY, SETTING, Document, Shape, read, shape_of
from events.errors import code_of
from events.spec import LARGEST_SPEC, CheckedSpec, Group, SpecError, StopSignal, check_spec, spec_schema
from events.spec.notify import Notify
from events.spec.spec import AppSpec
from events.spec.sweeps import FIELDS, is_sweep
from events.spec.variables import check_names

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT = Shape(texts=True)
_NUMBER = Shape(numbers=True)
_VALUES = Shape(settings=True, fields={"range": Shape(numbers=True, items=_NUMBER)}, items=SETTING)
SPEC = Shape(
    fields={
        **shape_of(AppSpec).fields,
        "group": Shape(fields={**shape_of(Group).fields, "parameters": Shape(values=SETTING)}),
        "notify": Shape(texts=True, fields=shape_of(Notify).fields),
        "stop_signal": Shape(texts=True, fields=shape_of(StopSignal).fields),
        "env_file": Shape(texts=True, items=_TEXT),
        "requirements_file": _TEXT,
        "array": _NUMBER,
        "mode": _TEXT,
        "parallel": _NUMBER,
        "sweep": Shape(values=_VALUES, items=Shape(values=SETTING)),
    }
)
"""What belongs at each place of a spec or a sweep in a file."""


class _Foreign(NamedTuple):
    """Files of other systems, and the page that says what becomes of them."""

    what: str
    page: str
    keys: tuple[frozenset[str], ...]
    """Such a file has all keys of one of these sets."""


_FOREIGN = (
    _Foreign("a manifest of Kubernetes", "kubernetes", (frozenset({"apiVersion"}),)),
    _Foreign(
        "a configuration of dstack",
        "dstack",
        tuple(map(frozenset, ({"type", "commands"}, {"type", "ide"}, {"type", "nodes"}))),
    ),
    _Foreign(
        "a task of SkyPilot",
        "skypilot",
        tuple(
            map(
                frozenset,
                ({"num_nodes"}, {"file_mounts"}, {"resources", "run"}, {"resources", "setup"}, {"setup", "run"}),
            )
        ),
    ),
    _Foreign("a file of docker compose", "docker-compose", (frozenset({"services"}),)),
    _Foreign(
        "a file of Ray",
        "ray",
        tuple(
            map(
                frozenset,
                (
                    {"head_node_type"},
                    {"available_node_types"},
                    {"cluster_name", "provider"},
                    {"entrypoint", "runtime_env"},
                ),
            )
        ),
    ),
)
_BATCH = re.compile(r"^#SBATCH\b", re.MULTILINE)
_TOP_KEY = re.compile(r"^([A-Za-z_][A-Za-z0-9_-]*):(?=\s|$)", re.MULTILINE)


def load_document(path: Path, shape: Shape = SPEC) -> Any:
    """Return the file as plain maps and lists; `-` is standard input (YAML).  Raises SpecError with the file's name."""
    return read_document(path, shape).value


def read_document(path: Path, shape: Shape) -> Document:
    """Return what a file says, with the lines of its fields.  Raises SpecError with the file's name."""
    try:
        return read(_read(path), shape, toml=path.suffix == ".toml")
    except OSError as error:
        raise SpecError(f"{name_of(path)}: {error.strerror}", code=code_of(error)) from None
    except SpecError as error:
        raise error.within(name_of(path)) from None


def read_spec(path: Path) -> Document:
    """Return the spec or sweep in a file, unchecked, with the lines of its fields.  Raises SpecError with the file's name."""
    try:
        return _spec_in(_read(path), path.name, toml=path.suffix == ".toml")
    except OSError as error:
        raise SpecError(f"{name_of(path)}: {error.strerror}", code=code_of(error)) from None
    except SpecError as error:
        raise error.within(name_of(path)) from None


def name_of(path: Path) -> str:
    """Return how messages name a file."""
    return "standard input" if str(path) == "-" else str(path)


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


def parse(text: str, shape: Shape = ANY, *, toml: bool = False) -> Any:
    """Parse a document.  Raises SpecError."""
    return read(text, shape, toml=toml).value


def parse_spec(text: str) -> Any:
    """Parse a spec or sweep in YAML, unchecked.  Raises SpecError."""
    return _spec_in(text).value


def _spec_in(text: str, name: str = "", *, toml: bool = False) -> Document:
    if _BATCH.search(text) and text.startswith("#"):
        raise _foreign("a batch script of Slurm", "slurm")
    try:
        document = read(text, SPEC, toml=toml)
    except SpecError:
        if not toml:
            _refuse_foreign(set(_TOP_KEY.findall(text)), name)  # Such as several manifests in one file.
        raise
    if isinstance(document.value, dict):
        _refuse_foreign(set(document.value), name)
    return document


def _refuse_foreign(keys: set[str], name: str) -> None:
    """Refuse a document of another system, by its keys and the name of its file.  Raises SpecError."""
    for one in _FOREIGN:
        if any(wanted <= keys for wanted in one.keys) or name.endswith((f".{one.page}.yml", f".{one.page}.yaml")):
            raise _foreign(one.what, one.page)


def _foreign(what: str, page: str) -> SpecError:
    text = f"this is {what}, not a spec of Dorm; docs/coming-from/{page}.md shows what becomes of it"
    return SpecError(text, code=f"spec.foreign.{page.replace('-', '_')}")


def file_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec in a file, which may name other files, and whose texts need no quotes."""
    schema = spec_schema()
    fields = schema["properties"]
    typed = {"type": ["string", "number", "boolean", "null"]}
    lists = {
        name: {**fields[name], "items": {**fields[name]["items"], **typed}}
        for name in ("command", "resume", "checkpoint")
    }
    maps = {
        name: {**fields[name], "additionalProperties": {**fields[name]["additionalProperties"], **typed}}
        for name in ("env", "labels")
    }
    return {
        **schema,
        "properties": {
            **fields,
            **lists,
            **maps,
            "env_file": ENV_FILE_SCHEMA,
            "requirements_file": REQUIREMENTS_FILE_SCHEMA,
        },
    }


def load_spec(
    path: Path, changes: dict[str, Any] | None = None, *, note: Callable[[str], None] = lambda text: None
) -> CheckedSpec:
    """Return a checked spec, with the contents of the files that it names; `changes` replaces fields, `note` receives notes
    for its author.  Raises SpecError with all that is wrong with it."""
    document = read_spec(path)
    if is_sweep(document.value):
        text = f"{name_of(path)}: this spec is many apps; submit it with `dorm sweep run {shlex.quote(str(path))}`"
        raise SpecError(text, code="spec.is_sweep")
    try:
        spec = check_spec(including(document.value, path, changes or {}, note), every=True)
        check_names(spec)
        return spec
    except SpecError as error:
        raise error.at_lines(document.line).within(name_of(path)) from None


def including(document: Any, path: Path, changes: dict[str, Any], note: Callable[[str], None]) -> Any:
    """Return a document with other values for some fields, and with the contents of the files that it names.

    Raises SpecError, with what else is wrong with it as a spec."""
    if not isinstance(document, dict):
        return document
    document = {**document, **changes}
    try:
        return included(document, Path() if str(path) == "-" else path.parent, note)
    except SpecError as error:
        try:
            check_spec({key: value for key, value in document.items() if key not in (*INCLUDED, *FIELDS)}, every=True)
        except SpecError as more:
            raise SpecError(str(error), code=error.code, others=(more, *more.others)) from None
        raise
