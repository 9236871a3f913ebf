"""The folder that an app starts in: a path as its owner writes it, or what the cluster has once a client has shipped it."""

from __future__ import annotations

from typing import Annotated, Protocol, TypeVar

import msgspec

from events.spec.faults import SpecError

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
