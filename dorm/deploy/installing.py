"""The files of a machine: where they are, what they say, and writing them repeatedly.

Every machine has the same places, so a unit file is read once; commands that run there without options read it as well.
Unchanged files are left alone, and changes by others are not lost: the record in `/etc/dorm/deployed.json` has the hash of
each file as it was written, so a file with another hash was changed by hand, and a file that is no longer wanted can be
removed.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from dorm.deploy.layout import API, KEYS, MASTER, NATS_CONFIGURATION, RECORD, UNITS, WEBHOOKS
from dorm.deploy.settings import DeploymentError
from events.durable import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dorm.deploy.rendering import File


# --- what is installed ------------------------------------------------------------------------------------------------

_DOUBLED = re.compile(r"([%$])\1")


class InstalledAgent(NamedTuple):
    """The node whose agent a unit starts."""

    name: str
    data: str
    checkpoints: str


def installed_agent(root: Path) -> InstalledAgent | None:
    """Return the node of the machine whose file system is at `root`; None if no unit of `dorm deploy install` starts an
    agent, or this user may not read it."""
    try:
        text = (root / UNITS.lstrip("/") / "dorm-agent.service").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return agent_of(text)


def agent_of(unit: str) -> InstalledAgent | None:
    """Return the node that a unit's `ExecStart=` names; None if it does not name the node completely."""
    command = next((line for line in unit.splitlines() if line.startswith("ExecStart=")), "")
    try:
        options = [_DOUBLED.sub(r"\1", word) for word in shlex.split(command.removeprefix("ExecStart="))]
    except ValueError:
        return None
    given = dict(pairwise(options))
    settings = [given.get(option, "") for option in ("--name", "--data", "--checkpoints")]
    return InstalledAgent(*settings) if all(settings) else None


# --- installing -------------------------------------------------------------------------------------------------------

Fate = Literal["new", "changed", "same", "removed", "edited"]
_OTHERS = {f"{KEYS}/accounts.conf"}
"""Files that an admin's commands replace as well."""
_RENEWED = {
    *(f"{KEYS}/{name}" for name in ("ca.pem", "server.pem", "server.key")),
    *(f"{API}/{name}" for name in ("server.pem", "server.key")),
}
"""Certificates and their keys: a path unit has the NATS server read them, and the API looks by itself."""
_SERVICES = {f"dorm-{name}.service" for name in ("nats", "master", "api", "webhooks", "agent")}
_KEYS_OF = {
    KEYS: "dorm-nats.service",
    MASTER: "dorm-master.service",
    API: "dorm-api.service",
    WEBHOOKS: "dorm-webhooks.service",
}
"""Units whose keys are in a folder. The next backup reads its own."""
_MOST_LINES = 400


class Step(NamedTuple):
    """What becomes of one file."""

    path: str
    fate: Fate
    difference: str = ""
    """The difference as `diff -u` shows it, unless the file is secret."""


class Record(msgspec.Struct, frozen=True):
    """What was written here: the hash of each file, by its path."""

    machine: str
    files: dict[str, str]


def plan(root: Path, machine: str, files: Sequence[File]) -> list[Step]:
    """Return what writing these files would do.  `root`: where the machine's file system is.  Raises DeploymentError."""
    record = _record(root)
    if record.machine not in ("", machine):
        raise DeploymentError(
            f"the files below {root} are those of machine {record.machine}, and not of {machine}; to give this machine "
            f"another part, remove {_at(root, RECORD)} first",
            code="deploy.machine.other",
        )
    steps = [_step(root, file, record.files.get(file.path)) for file in files]
    wanted = {file.path for file in files}
    for path in sorted(record.files.keys() - wanted):
        there = _read(_at(root, path))
        if there is not None:
            steps.append(Step(path, "removed" if _hash(there) == record.files[path] else "edited"))
    return steps


def _step(root: Path, file: File, written: str | None) -> Step:
    there = _read(_at(root, file.path))
    if there is None:
        return Step(file.path, "new")
    if there == file.content:
        return Step(file.path, "same")
    ours = written == _hash(there) or file.path in _OTHERS
    difference = "" if file.secret else _difference(file.path, there, file.content)
    return Step(file.path, "changed" if ours else "edited", difference)


def install(root: Path, machine: str, files: Sequence[File], *, force: bool = False) -> list[Step]:
    """Write these files, each whole or not at all, and remove earlier ones that are no longer wanted.  Nothing
    is written if one was changed by hand, unless `force` is given.  Raises DeploymentError."""
    steps = plan(root, machine, files)
    edited = [step.path for step in steps if step.fate == "edited"]
    if edited and not force:
        # Only units have drop-ins.
        dropped = f" or in {edited[0]}.d/local.conf" if _is_unit(edited[0]) else ""
        raise DeploymentError(
            f"{_at(root, edited[0])} was changed by hand or is not of `dorm deploy install`; keep the change in the "
            f"settings{dropped}, and run it again with --force, which replaces the file",
            code="deploy.file.edited",
        )
    by_path = {file.path: file for file in files}
    try:
        for step in steps:
            if step.path in by_path:
                if step.fate != "same":
                    _write(_at(root, step.path), by_path[step.path])
                _at(root, step.path).chmod(by_path[step.path].mode)
            else:
                _at(root, step.path).unlink(missing_ok=True)
        record = Record(machine, {file.path: _hash(file.content) for file in files})
        _write_bytes(_at(root, RECORD), msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n", 0o600)
    except OSError as error:
        raise DeploymentError(
            f"{error.filename}: {error.strerror}; run it as root, or write below another folder with --root",
            code="deploy.not_writable",
        ) from None
    return steps


def changed(steps: Iterable[Step]) -> bool:
    """Return whether anything was or would be written."""
    return any(step.fate != "same" for step in steps)


def restarts(steps: Iterable[Step]) -> list[str]:
    """Return the services that have to be restarted for what was changed: those whose unit, configuration or key it is.
    Changed accounts and certificates need no restart: the running servers read them."""
    services = []
    for step in steps:
        if step.fate not in ("changed", "edited") or step.path in _OTHERS | _RENEWED:
            continue
        name = step.path.rpartition("/")[2]
        if _is_unit(step.path) and name in _SERVICES:
            services.append(name)
        elif step.path == NATS_CONFIGURATION:
            services.append("dorm-nats.service")
        else:
            services += [service for folder, service in _KEYS_OF.items() if step.path.startswith(f"{folder}/")]
    return list(dict.fromkeys(services))


def stops(steps: Iterable[Step]) -> list[str]:
    """Return the units that still run although their files are gone."""
    units = [step.path.rpartition("/")[2] for step in steps if step.fate == "removed" and _is_unit(step.path)]
    return [unit for unit in units if unit not in ("dorm-nats-reload.service", "dorm-nats-renewed.service")]


def _is_unit(path: str) -> bool:
    return path.startswith(f"{UNITS}/")


def _at(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _record(root: Path) -> Record:
    content = _read(_at(root, RECORD))
    if content is None:
        return Record("", {})
    try:
        return msgspec.json.decode(content, type=Record)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise DeploymentError(
            f"{_at(root, RECORD)} can't be read; remove it, and run this again with --force",
            code="deploy.record.unreadable",
        ) from None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DeploymentError(f"{path}: {error.strerror}; run it as root", code="deploy.not_readable") from None


def _write(path: Path, file: File) -> None:
    _write_bytes(path, file.content, file.mode)


def _write_bytes(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat() if path.exists() else None
    # systemd-tmpfiles gave it to its reader, who may read it at this moment.
    write_whole(path, content, mode=mode, owner=None if before is None else (before.st_uid, before.st_gid))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _difference(path: str, before: bytes, after: bytes) -> str:
    lines = difflib.unified_diff(
        before.decode(errors="replace").splitlines(), after.decode().splitlines(), path, path, lineterm="", n=1
    )
    return "\n".join(list(lines)[:_MOST_LINES])
