"""App specs and cluster files on disk, YAML or TOML by file extension: the files that they name, and fields typed on the
command line.

Some fields of a spec file name other files: the client reads them, and the log gets their contents.

    env_file             variables in the syntax of `.env` files, for `env`; variables of `env` itself come first
    requirements_file    a requirements.txt, or a uv.lock beside its pyproject.toml, for `requirements`

Paths are relative to the spec file.  A variable that looks like a secret is left out, with a note: everyone who reads the
log would see it.  A requirements.txt may include others (`-r`; `-c` is refused).  A uv.lock is exported by uv, with the
hash of each file, so nodes install exactly the locked files.

Any field can be typed as `KEY=VALUE`, and volumes by name.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dotenv.parser import parse_stream

from events.documents import ANY, SETTING, Document, Shape, read, shape_of
from events.errors import DormError, code_of
from events.quantities import short
from events.spec import LARGEST_SPEC, CheckedSpec, Group, SpecError, StopSignal, check_spec, spec_schema
from events.spec.checking import why_secret
from events.spec.notify import Notify
from events.spec.spec import PARTS, AppSpec
from events.spec.sweeps import FIELDS, is_sweep
from events.spec.variables import check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# --- files that specs name --------------------------------------------------------------------------------------------


def read_beside(folder: Path, path: str, most: int, field: str) -> str:
    """Return the text of a file that a field names, of at most `most` bytes.  Raises SpecError."""
    try:
        with (folder / path).open("rb") as file:
            body = file.read(most + 1)
    except OSError as error:
        raise SpecError(f"{field}: {path}: {error.strerror}", code=code_of(error)) from None
    if len(body) > most:
        raise SpecError(f"{field}: {path}: more than {most:,} bytes", code=f"spec.{field}.too_large")
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"{field}: {path}: this is not a text file (in UTF-8)", code=f"spec.{field}.not_text") from None


# --- lists of packages ------------------------------------------------------------------------------------------------

LARGEST = 192 * 1024
"""Bytes of all files together: they become a part of the spec."""
_DEEPEST = 8
_UV_S = 60.0
_INCLUDED = re.compile(r"(?:-r|--requirement)(?:\s+|=)(\S+)$")
_COMMENT = re.compile(r"(^|\s)#.*$")


def requirements_of(path: Any, folder: Path) -> list[str]:
    """Return the requirements that a file holds, one in each line.  Raises SpecError."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise SpecError(
            f"requirements_file: expected a path such as requirements.txt or uv.lock, got {short(path)}",
            code="spec.requirements_file.wrong_type",
        )
    if Path(path).name == "uv.lock":
        return _lines(_exported(folder / path), folder / Path(path).parent, 0)
    return _lines(read_beside(folder, path, LARGEST, "requirements_file"), (folder / path).parent, 0)


def _lines(text: str, folder: Path, depth: int) -> list[str]:
    """Return the logical lines, without comments, and with those of files that are included."""
    requirements: list[str] = []
    for line in re.sub(r"\\\r?\n\s*", " ", text).splitlines():
        requirement = _COMMENT.sub("", line).strip()
        included = _INCLUDED.match(requirement)
        if included is not None:
            if depth >= _DEEPEST:
                raise SpecError(
                    f"requirements_file: {included[1]}: files include each other in more than {_DEEPEST} levels",
                    code="spec.requirements_file.too_deep",
                )
            inner = read_beside(folder, included[1], LARGEST, "requirements_file")
            requirements += _lines(inner, (folder / included[1]).parent, depth + 1)
        elif requirement:
            requirements.append(requirement)
    return requirements


def _exported(lock: Path) -> str:
    """Return what uv exports of a lock file.  Raises SpecError."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise SpecError(
            f"requirements_file: {lock}: uv is not installed here, which reads its lock files; install it, or write "
            "`uv export --no-emit-project -o requirements.txt` elsewhere",
            code="spec.requirements_file.no_uv",
        )
    command = [uv, "export", "--frozen", "--no-emit-project", "--no-dev", "--no-header", "--format", "requirements-txt"]
    try:
        done = subprocess.run(
            [*command, "--project", str(lock.absolute().parent)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_UV_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(f"requirements_file: {lock}: {error}", code="spec.requirements_file.uv_failed") from None
    if done.returncode or not lock.is_file():
        message = " ".join(done.stderr.split())[-300:] or "there is no such file"
        raise SpecError(f"requirements_file: {lock}: {message}", code="spec.requirements_file.uv_failed")
    return done.stdout


# --- contents of such files -------------------------------------------------------------------------------------------

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
    variables: dict[str, str] = {}
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
                variables[name] = value
    return variables


def _parsed(path: str, text: str) -> dict[str, str]:
    variables: dict[str, str] = {}
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
            variables[binding.key] = binding.value
    return variables


# --- typed fields -----------------------------------------------------------------------------------------------------

_MAPS = (*PARTS, "demand", "env", "labels", "secrets")
"""Fields whose parts may be set one by one."""


class SettingRefused(DormError):
    """A field of a spec can't be set as it was typed."""

    code = "usage.set.malformed"


def with_settings(document: dict[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    """Return the document with `KEY=VALUE` applied in order: values as in YAML, parts of maps as `env.LR=0.1`, and nothing
    after the sign for the default.  Raises SettingRefused."""
    changed = dict(document)
    for pair in pairs:
        key, sign, text = pair.partition("=")
        field, dot, part = key.partition(".")
        if not sign or not field or (dot and not part):
            raise SettingRefused(f"--set {pair!r}: write KEY=VALUE, such as weight=2 or env.LR=0.1")
        if dot and field not in _MAPS:
            raise SettingRefused(f"--set {pair!r}: {field} has no parts; write {field}=VALUE")
        place = SPEC.of(field).of(part) if dot else SPEC.of(field)
        try:
            # An entry of a map of texts is the text, whatever signs it holds.
            value = text if dot and place.plain else parse(text, place) if text else None
        except SpecError as error:
            raise SettingRefused(f"--set {pair!r}: {error}", code=code_of(error)) from None
        if not dot:
            _put(changed, field, value, keep=bool(text))
            continue
        inner = changed.get(field)
        changed[field] = dict(inner) if isinstance(inner, dict) else {}
        _put(changed[field], part, value, keep=bool(text))
        if not changed[field]:
            del changed[field]
    return changed


def _put(document: dict[str, Any], key: str, value: Any, *, keep: bool) -> None:
    if keep:
        document[key] = value
    else:
        document.pop(key, None)


def read_fields(
    folder: Path,
    note: Callable[[str], None],
    *,
    env: dict[str, str],
    env_files: Sequence[str] = (),
    requirements: str = "",
    volumes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the fields of a spec for the options of a command: its variables, files beside it that hold variables or
    packages, and volumes as `NAME[:PATH][:rw]`.  `note` receives notes for their author.  Raises SpecError."""
    given: dict[str, Any] = {"env": env}
    if env_files:
        given["env_file"] = list(env_files)
    if requirements:
        given["requirements_file"] = requirements
    if volumes:
        given["volumes"] = [_volume(volume) for volume in volumes]
    return {field: value for field, value in included(given, folder, note).items() if value}


def _volume(typed: str) -> dict[str, Any]:
    name, *rest = typed.split(":")
    writes = rest[-1:] in (["rw"], ["ro"]) and rest.pop() == "rw"
    volume: dict[str, Any] = {"name": name, **({"at": ":".join(rest)} if rest else {})}
    return {**volume, "read_only": False} if writes else volume


# --- documents --------------------------------------------------------------------------------------------------------

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
"""Fields that belong at each place of a spec or a sweep in a file."""


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
    for format in _FOREIGN:
        if any(wanted <= keys for wanted in format.keys) or name.endswith(
            (f".{format.page}.yml", f".{format.page}.yaml")
        ):
            raise _foreign(format.what, format.page)


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
