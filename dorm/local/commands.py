"""Specs of typed commands: `python train.py` in a folder, without a spec file."""

from __future__ import annotations

import os
import re
import shutil
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import psutil

from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dorm.core.state import Node

_LONGEST_NAME = 40
"""Characters of a generated name, which leaves room for a number after it."""
_CANNOT_RUN = [125, 126, 127]
"""What env(1) exits with if the folder or the program is missing: a retry would end the same way."""

_ENVIRONMENT = ("requirements", "setup", "python")
"""Fields that require an environment to be built."""


class CommandRefused(DormError):
    """A command cannot be run as it was typed."""

    code = "run.refused"


class Typed(msgspec.Struct, frozen=True):
    """A command and its options."""

    words: tuple[str, ...]
    demand: dict[str, str]
    n_min: int = 1
    n_max: int | None = None
    """None for `n_min`."""
    name: str = ""
    """"" for one made from the command."""
    image: str = ""
    folder: str = ""
    """Its working directory on every node or in the image; "" for the current folder or the image's own."""
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
    are theirs, unless it asks for an environment, whose programs come first.  Raises CommandRefused."""
    asked = _set(typed.fields, typed.settings)
    own = any(asked.get(field) for field in _ENVIRONMENT)
    words = list(typed.words)
    if not own and (typed.here or (typed.workdir and local and not typed.image)):
        words[0] = _program(words[0])
    folder = str(Path.cwd()) if typed.here else typed.folder
    if folder:
        words = ["env", "-C", folder, *words]
    spec: dict[str, Any] = {
        "name": name,
        "command": words,
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
    }
    made = spec | {field: value for field, value in given.items() if value} | typed.fields
    return _set(made, typed.settings)


def _set(fields: dict[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    if not settings:
        return fields
    # It reads YAML, which takes a while to import.
    from dorm.local.spec_settings import SettingRefused, with_settings

    try:
        return with_settings(fields, settings)
    except SettingRefused as error:
        raise CommandRefused(str(error), code=error.code) from None


def _program(word: str) -> str:
    """Return the path of a program of this machine: nodes have a PATH of their own.  Raises CommandRefused."""
    if "/" in word:
        return word
    beside = str(Path(sys.executable).parent)
    found = shutil.which(word) or shutil.which(word, path=beside)
    if found is None:
        raise CommandRefused(
            f"{word}: there is no such program here; write the command as you would run it in this shell",
            code="run.program.not_found",
        )
    return os.path.abspath(found)


def made_name(words: Sequence[str]) -> str:
    """Return a name for a command: of its script, of its Python module, else of its program."""
    script = next((Path(word).stem for word in words if word.endswith((".py", ".sh"))), "")
    module = words[words.index("-m") + 1].rpartition(".")[2] if "-m" in words[:-1] else ""
    plain = re.sub(r"[^a-z0-9]+", "-", (script or module or Path(words[0]).name).lower())
    return plain[:_LONGEST_NAME].strip("-") or "app"


def free_name(wanted: str, taken: Collection[str]) -> str:
    """Return the name, with a number after it if an app has that name."""
    return next(name for number in count(1) if (name := wanted if number == 1 else f"{wanted}-{number}") not in taken)


def check_nodes(typed: Typed, nodes: Iterable[Node], url: str) -> bool:
    """Refuse a command if a node could not run it as it was typed: without a shipped folder, nothing brings this machine's
    files to others.  Return whether all nodes are this machine.  `url`: of the cluster's servers.  Raises CommandRefused."""
    usable = sorted((node for node in nodes if not node.gone), key=lambda node: node.id)
    engines = [node.id for node in usable if node.runtime.partition(" ")[0] != "process"]
    if engines and not typed.image:
        raise CommandRefused(
            f"{_named(engines)} containers from images, which hold no programs of this machine: name an image that has the "
            "program with --image, such as python:3.12-slim; a cluster by `dorm up --runtime process` needs none",
            code="run.image.missing",
        )
    own = _addresses()
    near = any(urlsplit(one).hostname in own for one in url.split(","))
    far = [node.id for node in usable if node.address not in own or (_loops(node.address) and not near)]
    if typed.here and far:
        raise CommandRefused(
            f"{_named(far)} on other machines, which do not have this folder: leave out --no-workdir to ship it, or put the "
            "program where every node has it and name that folder with --folder",
            code="run.folder.elsewhere",
        )
    return not far


def _named(nodes: list[str]) -> str:
    verb = "runs" if len(nodes) == 1 else "run"
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"{', '.join(nodes[:3])}{more} {verb}"


def _addresses() -> set[str]:
    """Return the names and addresses of this machine."""
    found = {address.address.partition("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    return found | {"localhost", "127.0.0.1", "::1", os.uname().nodename}


def _loops(address: str) -> bool:
    return address in ("localhost", "::1") or address.startswith("127.")
