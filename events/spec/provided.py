"""What an app's containers are provided with besides its command: packages, folders of the nodes, the project folder.

*The environment* is built of Python packages, commands and an interpreter.  A spec holds the requirements themselves,
not the name of a file: a node has no file of the submitter's, and the log says what an app ran with.
`requirements_file` of a spec file is read by the client (`dorm.local.spec_files`).

*Volumes* are folders of the nodes that an app reads or writes: datasets, models, scratch space.  A spec names volumes
that nodes offer (`dorm agent --volume`), never paths of a node.  It runs only on nodes that offer all of them.  They
are read-only unless the spec asks for more and the node's configuration allows it.

*The workdir* is the folder that an app starts in: a path as its owner writes it, or what the cluster has once a client
has shipped it.
"""

from __future__ import annotations

import posixpath
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import msgspec

from events.fields import holds
from events.quantities import short
from events.spec.faults import SpecError, unknown_field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# --- environment ------------------------------------------------------------------------------------------------------

LONGEST_REQUIREMENTS = 5000
"""Lines."""
Requirements = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1, max_length=16_384), holds("argument")]],
    msgspec.Meta(
        max_length=LONGEST_REQUIREMENTS,
        description="Python packages, installed once on each node into an environment of the app's own; each as in a "
        "line of a requirements.txt; in files, `requirements_file` names a requirements.txt or a uv.lock instead",
        examples=[["numpy>=2", "einops"]],
    ),
]
Setup = Annotated[
    list[Annotated[str, msgspec.Meta(min_length=1, max_length=16_384), holds("argument")]],
    msgspec.Meta(
        max_length=64,
        description="shell commands that are run once on each node, in that environment, after its packages are installed",
        examples=[["pip install --no-deps mypackage", "python -m nltk.downloader punkt"]],
    ),
]
PythonVersion = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(3\.[0-9]{1,2}|/[^\x00-\x1f\x7f]{1,4094})?$",
        description="which Python runs plain processes: a version such as '3.12', of those that nodes have, or the path of "
        "one, whose programs come first in PATH, and on whose packages those of `requirements` build; default: the one of "
        "the shell that submits the app if all nodes are this machine and run plain processes, else the node's; images "
        "bring their own",
        examples=["3.12", "/home/ann/project/.venv/bin/python"],
    ),
]
_LOCAL = re.compile(r"(-r|--requirement|-c|--constraint|-e|--editable)\b|\.{0,2}/|\.$|file:(?!///)", re.IGNORECASE)
"""Lines that refer to files beside the requirements."""


def check_environment_form(document: Mapping[Any, Any]) -> None:
    """Refuse what people write for lists and versions.  Raises SpecError."""
    python = document.get("python")
    if isinstance(python, float | int):
        raise SpecError(
            f"python: write the version in quotes, such as '3.12', not {python}: 3.10 would be 3.1",
            code="spec.python.not_quoted",
        )
    for name in ("requirements", "setup"):
        if isinstance(document.get(name), str):
            more = "; requirements_file names a file" if name == "requirements" else ""
            raise SpecError(
                f"{name}: expected a list, got {short(document[name])}; put it in brackets{more}",
                code=f"spec.{name}.wrong_type",
            )


def check_environment(requirements: Sequence[str], python: str) -> None:
    """Refuse requirements that need files which no node has.  Raises SpecError."""
    for index, line in enumerate(requirements):
        if "\n" in line or "\r" in line:
            raise SpecError(
                f"requirements[{index}]: write one requirement in each entry, without line ends",
                code="spec.requirements.malformed",
            )
        if _LOCAL.match(line.strip()):
            raise SpecError(
                f"requirements[{index}]: {short(line)} refers to a file, which nodes do not have; write the packages "
                "themselves, or install it in `setup` from a path that every node has",
                code="spec.requirements.local",
            )
    if python.endswith("\n"):
        raise SpecError("python: can't hold a line end", code="spec.python.malformed")


# --- volumes ----------------------------------------------------------------------------------------------------------

MOST_VOLUMES = 16
"""Volumes of one app."""
VOLUME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$"
VolumeName = Annotated[
    str,
    msgspec.Meta(pattern=VOLUME_PATTERN, description="lower-case letters, digits and dashes, at most 48"),
]
_PATH = r"^/[A-Za-z0-9._@+=/-]{0,254}$"
VolumePath = Annotated[
    str,
    msgspec.Meta(
        pattern=_PATH,
        description="an absolute path; letters, digits and . _ @ + = - in its names",
        examples=["/data"],
    ),
]


class Volume(msgspec.Struct, frozen=True, omit_defaults=True):
    """One volume of an app."""

    name: VolumeName
    at: Annotated[
        VolumePath | None,
        msgspec.Meta(description="where a Docker container sees it; default: /volumes/NAME"),
    ] = None
    read_only: Annotated[
        bool, msgspec.Meta(description="false: to write there, where the node's configuration allows it")
    ] = True

    @property
    def place(self) -> str:
        """Return where a Docker container sees it."""
        return self.at or f"/volumes/{self.name}"

    @property
    def variable(self) -> str:
        """Return the variable that holds its path inside containers."""
        return f"DORM_VOLUME_{self.name.upper().replace('-', '_')}"


Volumes = (
    Annotated[dict[VolumeName, VolumePath], msgspec.Meta(max_length=MOST_VOLUMES)]
    | Annotated[list[Volume], msgspec.Meta(max_length=MOST_VOLUMES)]
)
_OWN = ("/dorm", "/proc", "/sys", "/dev")
"""Folders of a container that are the engine's or Dorm's own."""


def volumes_of(given: Volumes) -> tuple[Volume, ...]:
    """Return the volumes that a spec gives in one of their two forms, by name."""
    if isinstance(given, dict):
        return tuple(Volume(name, at) for name, at in sorted(given.items()))
    return tuple(sorted(given, key=lambda volume: volume.name))


def check_volumes_form(document: dict[Any, Any]) -> None:
    """Refuse anything but a map of paths or a list of maps.  Raises SpecError; the general messages know no field that
    has two forms."""
    given = document.get("volumes")
    if isinstance(given, dict):
        for name, at in given.items():
            _check_path(f"volumes.{short(name)[1:-1]}", at)
        return
    if given is None:
        return
    if not isinstance(given, list):
        text = f"volumes: expected a map such as {{datasets: /data}}, or a list of maps with name and at, got {short(given)}"
        raise SpecError(text, code="spec.volumes.wrong_type")
    for index, volume in enumerate(given):
        where = f"volumes[{index}]"
        if not isinstance(volume, dict):
            raise SpecError(
                f"{where}: expected a map with name and at, got {short(volume)}", code="spec.volumes.wrong_type"
            )
        if "name" not in volume:
            raise SpecError(f"{where}.name: missing", code="spec.volumes.name.missing")
        if fault := unknown_field(volume, Volume.__struct_encode_fields__, f"{where}."):
            raise SpecError(str(fault), code="spec.volumes.unknown_field")
        if volume.get("at") is not None:
            _check_path(f"{where}.at", volume["at"])


def _check_path(where: str, at: Any) -> None:
    if not isinstance(at, str) or not re.fullmatch(_PATH, at):
        text = f"{where}: expected an absolute path such as /data, of letters, digits and . _ @ + = -, got {short(at)}"
        raise SpecError(text, code="spec.volumes.malformed")


def check_volumes(given: Volumes) -> None:
    """Refuse volumes that can't be told apart, or would hide a part of the container that is not the app's.  Raises
    SpecError."""
    volumes = volumes_of(given)
    for before, volume in pairwise(volumes):
        if before.name == volume.name:
            raise SpecError(
                f"volumes: {volume.name} is there twice; leave one of them out", code="spec.volumes.name.twice"
            )
    for volume in volumes:
        _check_place(volume)
    places = sorted(volumes, key=lambda volume: f"{volume.place}/")
    for outer, inner in pairwise(places):
        if f"{inner.place}/".startswith(f"{outer.place}/"):
            text = (
                f"volumes.{inner.name}: {inner.place} lies in {outer.place}, which is {outer.name}; choose another path"
            )
            raise SpecError(text, code="spec.volumes.at.nested")


def _check_place(volume: Volume) -> None:
    place = volume.place
    if volume.name.endswith("\n") or place.endswith("\n"):
        raise SpecError(f"volumes: {short(volume.name)} can't hold a line end", code="spec.volumes.malformed")
    if posixpath.normpath(place) != place or place.startswith("//") or place == "/":
        text = f"volumes.{volume.name}: {short(place)} is no path below /, without . and .. and a slash at its end"
        raise SpecError(text, code="spec.volumes.at.malformed")
    own = next((folder for folder in _OWN if f"{place}/".startswith(f"{folder}/")), "")
    if own:
        text = f"volumes.{volume.name}: {own} is not the app's own in a container; choose another path, such as /data"
        raise SpecError(text, code="spec.volumes.at.reserved")


# --- workdir ----------------------------------------------------------------------------------------------------------

Hash = Annotated[
    str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the folder's list of files, in hex")
]
Commit = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})?$")]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class Workdir(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder that a client has shipped.  The hash alone decides what containers find; the rest is for people."""

    hash: Hash
    files: Annotated[Amount, msgspec.Meta(description="how many files it has")] = 0
    bytes: Annotated[Amount, msgspec.Meta(description="the size of all of them")] = 0
    commit: Annotated[Commit, msgspec.Meta(description="the git commit that it was at, if it was in a repository")] = ""
    changed: Annotated[bool, msgspec.Meta(description="whether it differed from that commit")] = False


Field = Annotated[
    Workdir | Path | None,
    msgspec.Meta(
        description="the project folder: a path, relative to this file, which `dorm submit` ships; containers start in a "
        "copy of their own. What it has shipped stands here on the log",
        examples=["."],
    ),
]


class HasWorkdir(Protocol):
    """A spec."""

    @property
    def workdir(self) -> Workdir | str | None: ...


def shipped(spec: HasWorkdir) -> Workdir | None:
    """Return the folder that the spec's containers start in; None if it names none."""
    return spec.workdir if isinstance(spec.workdir, Workdir) else None


S = TypeVar("S", bound=msgspec.Struct)


def as_shipped(spec: S) -> S:
    """Return the spec as it would be once its folder were shipped: for plans, which need no files."""
    if isinstance(getattr(spec, "workdir", None), str):
        return msgspec.structs.replace(spec, workdir=Workdir(hash="0" * 64))
    return spec


def check_shipped(spec: HasWorkdir) -> None:
    """Refuse a path: it names a folder of its author's machine.  Raises SpecError."""
    if isinstance(spec.workdir, str):
        raise SpecError(
            "workdir: it is the path of a folder on your machine, which nodes do not have; `dorm submit` ships it and writes "
            "its hash here, and so does `dorm.workdir.ship` in Python",
            code="spec.workdir.not_shipped",
        )
