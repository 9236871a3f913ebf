"""Specs of typed commands: `python train.py` in a folder, without a spec file; and which Python apps from this shell use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import psutil

from events.addresses import is_loopback
from events.errors import DormError
from events.runtimes import runs_images

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dorm.core.state import Node
    from events.spec import CheckedSpec

_LONGEST_NAME = 40
"""Characters of a generated name, which leaves room for a number after it."""
_CANNOT_RUN = [125, 126, 127]
"""Exit codes of env(1) if the folder or the program is missing: a retry would end the same way."""

_ENVIRONMENT = ("requirements", "setup", "python")
"""Fields that require an environment to be built."""
_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
_ANSWER_S = 10.0


class CommandRefused(DormError):
    """A command cannot be run as it was typed."""

    code = "run.refused"


class Typed(msgspec.Struct, frozen=True):
    """A command and its options."""

    command: tuple[str, ...]
    demand: dict[str, str]
    n_min: int = 1
    n_max: int | None = None
    """Most containers; None for `n_min`."""
    name: str = ""
    """"" for one made from the command."""
    image: str = ""
    folder: str = ""
    """Working directory on every node or in the image; "" for the current folder or the image's own."""
    workdir: str = ""
    """The folder of this machine that is shipped, in whose copy it runs; "" to ship none."""
    engine: str = "plain"
    fields: dict[str, Any] = {}
    """Further fields of its spec, such as `env` and `volumes`."""
    settings: tuple[str, ...] = ()
    """Fields that were typed as `KEY=VALUE`, which override everything else."""
    retries: int = 0
    origin: str = ""
    """The app from whose checkpoint it starts."""

    @property
    def here(self) -> bool:
        """Whether it runs in the current folder itself, with this machine's programs."""
        return not self.image and not self.folder and not self.workdir


def document(typed: Typed, name: str, *, local: bool = True) -> dict[str, Any]:
    """Return the spec, whose `workdir` is still a path.  env(1) enters a folder of the nodes, so such a spec needs only its
    command, and the log says where it runs.  `local`: whether all nodes are this machine, so that its programs
    are theirs, and its Python is the one of this shell, unless it asks for an environment, whose programs come first.  Raises
    CommandRefused."""
    set_by_user = _set(typed.fields, typed.settings)
    own = any(set_by_user.get(field) for field in _ENVIRONMENT)
    command = list(typed.command)
    here = local and not _image(typed)
    python = _python_for(set_by_user, command[0] if _PYTHON.fullmatch(command[0]) else "") if here else ""
    if not own and (typed.here or (typed.workdir and here)) and not _is_beside(command[0], python):
        command[0] = _program(command[0])
    folder = str(Path.cwd()) if typed.here else typed.folder
    if folder:
        command = ["env", "-C", folder, *command]
    spec: dict[str, Any] = {
        "name": name,
        "command": command,
        "demand": typed.demand,
        "n_min": typed.n_min,
        "n_max": typed.n_max if typed.n_max is not None else typed.n_min,
        "retries": {"limit": typed.retries, "fatal_exit_codes": _CANNOT_RUN},
    }
    given = {
        "workdir": typed.workdir,
        "from": typed.origin,
        "image": typed.image,
        "engine": typed.engine if typed.engine != "plain" else "",
        "python": python,
    }
    made = spec | {field: value for field, value in given.items() if value} | typed.fields
    return _set(made, typed.settings)


def _python_for(fields: dict[str, Any], word: str = "") -> str:
    """Return the path of the Python that a spec with these fields gets from this shell; "" if it chooses one itself."""
    env = fields.get("env")
    chooses = fields.get("python") or (isinstance(env, dict) and "PATH" in env)
    return "" if chooses else shell_python(word)


def _is_beside(word: str, python: str) -> bool:
    """Return whether a word is a Python, or another program next to it, which comes first in the app's PATH."""
    return bool(python) and "/" not in word and _runs(Path(python).parent / word) and bool(_PYTHON.fullmatch(word))


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def shell_python(word: str = "") -> str:
    """Return the path of the Python that this shell runs as `word`, or as `python3` or `python`; "" if there is none.  A
    script that chooses one, as pyenv's do, is asked which.  Blocks."""
    names = (word,) if word else ("python3", "python")
    folders = (Path(folder or ".").absolute() for folder in os.get_exec_path())
    python = next((folder / name for folder in folders for name in names if _runs(folder / name)), None)
    if python is None:
        return ""
    try:
        with python.open("rb") as file:
            chooses = file.read(2) == b"#!"
        if not chooses:
            return str(python)
        answer = subprocess.run(
            [python, "-c", "import sys; print(sys.executable)"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    chosen = answer.stdout.strip()
    return chosen if chosen.startswith("/") and "\n" not in chosen else ""


def with_shell_python(spec: CheckedSpec, nodes: Iterable[Node], url: str) -> CheckedSpec:
    """Return a spec whose containers find the Python of this shell, if it chooses none and all nodes run plain processes on
    this machine.  `url`: of the cluster's servers.  Blocks."""
    usable = [node for node in nodes if not node.gone]
    if not usable or _in_engines(usable) or _far(usable, url):
        return spec
    python = _python_for({"python": spec.python, "env": spec.env})
    return msgspec.structs.replace(spec, python=python) if python else spec


def _image(typed: Typed) -> str:
    """Return the image, which a setting may name too."""
    return str(_set({"image": typed.image}, typed.settings)["image"] or "")


def _set(fields: dict[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    if not settings:
        return fields
    # It reads YAML, which takes a while to import.
    from dorm.local.spec_files import SettingRefused, with_settings

    try:
        return with_settings(fields, settings)
    except SettingRefused as error:
        raise CommandRefused(str(error), code=error.code) from None


def _program(word: str) -> str:
    """Return the path of a program of this machine: nodes have a PATH of their own.  Raises CommandRefused."""
    if "/" in word:
        return word
    own_folder = str(Path(sys.executable).parent)
    path = shutil.which(word) or shutil.which(word, path=own_folder)
    if path is None:
        raise CommandRefused(
            f"{word}: there is no such program here; write the command as you would run it in this shell",
            code="run.program.not_found",
        )
    return os.path.abspath(path)


def made_name(command: Sequence[str]) -> str:
    """Return a name for a command: of its script, of its Python module, else of its program."""
    script = next((Path(word).stem for word in command if word.endswith((".py", ".sh"))), "")
    module = command[command.index("-m") + 1].rpartition(".")[2] if "-m" in command[:-1] else ""
    plain = re.sub(r"[^a-z0-9]+", "-", (script or module or Path(command[0]).name).lower())
    return plain[:_LONGEST_NAME].strip("-") or "app"


def free_name(wanted: str, taken: Collection[str]) -> str:
    """Return the name, with a number after it if an app has that name."""
    return next(name for number in count(1) if (name := wanted if number == 1 else f"{wanted}-{number}") not in taken)


def check_nodes(typed: Typed, nodes: Iterable[Node], url: str) -> bool:
    """Refuse a command if a node could not run it as it was typed: without a shipped folder, nothing brings this machine's
    files to others.  Return whether all nodes are this machine.  `url`: of the cluster's servers.  Raises CommandRefused."""
    usable = sorted((node for node in nodes if not node.gone), key=lambda node: node.id)
    engines = _in_engines(usable)
    if engines and not _image(typed):
        raise CommandRefused(
            f"{_named(engines)} containers from images, which hold no programs of this machine: name an image that has the "
            "program with --image, such as python:3.12-slim; a cluster by `dorm up --runtime process` needs none",
            code="run.image.missing",
        )
    far = _far(usable, url)
    if typed.here and far:
        raise CommandRefused(
            f"{_named(far)} on other machines, which do not have this folder: leave out --no-workdir to ship it, or put the "
            "program where every node has it and name that folder with --folder",
            code="run.folder.elsewhere",
        )
    return not far


def _in_engines(nodes: Iterable[Node]) -> list[str]:
    return [node.id for node in nodes if runs_images(node.runtime)]


def _far(nodes: Iterable[Node], url: str) -> list[str]:
    """Return the nodes on other machines."""
    own = _addresses()
    near = any(urlsplit(address).hostname in own for address in url.split(","))
    return [node.id for node in nodes if node.address not in own or (is_loopback(node.address) and not near)]


def _named(nodes: list[str]) -> str:
    verb = "runs" if len(nodes) == 1 else "run"
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"{', '.join(nodes[:3])}{more} {verb}"


def _addresses() -> set[str]:
    """Return the names and addresses of this machine."""
    local = {address.address.partition("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    return local | {"localhost", "127.0.0.1", "::1", os.uname().nodename}
