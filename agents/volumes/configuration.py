"""The volumes that a node's configuration lists: `dorm agent --volume NAME=PATH[:rw][:TENANT,TENANT]`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from events.errors import DormError
from events.kinds import MOST_OFFERED
from events.spec.provided import VOLUME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterable

_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_@+-]{0,63}")
_FORM = "NAME=PATH[:rw][:TENANT,TENANT], such as datasets=/data or scratch=/mnt/scratch:rw:vision,nlp"
_PRIVATE = ("/proc", "/sys", "/dev", "/var/run", "/run")
"""Folders with files that control the machine, such as a Docker engine's socket."""


class WrongVolume(DormError, ValueError):
    """A volume can't be offered as it is written; the message says what to write."""

    code = "config.volume.malformed"


class OfferedVolume(msgspec.Struct, frozen=True):
    """One folder of the node."""

    path: Path
    writable: bool = False
    tenants: tuple[str, ...] = ()
    """Whose apps may use it; empty for everybody's."""

    def option(self, name: str) -> str:
        """Return the volume as an option of `dorm agent`.  Raises WrongVolume for a path that none could hold."""
        if ":" in str(self.path):
            raise WrongVolume(f"volume {name}: {self.path} holds a colon; offer it under another path, such as a link")
        words = ["rw"] if self.writable else []
        return ":".join([f"{name}={self.path}", *words, *([",".join(self.tenants)] if self.tenants else [])])


class VolumeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A volume as a settings file writes it."""

    path: str
    read_only: bool = True
    tenants: list[str] = []

    def offered(self, name: str) -> OfferedVolume:
        """Return the volume.  Raises WrongVolume."""
        return checked(name, self.path, writable=not self.read_only, tenants=self.tenants)


def parse_volume(text: str) -> tuple[str, OfferedVolume]:
    """Return a volume and its name.  Raises WrongVolume."""
    name, separator, rest = text.partition("=")
    path, *words = rest.split(":")
    if not separator or not path or len(words) > 2:
        raise WrongVolume(f"volume {text[:200]!r}: write {_FORM}")
    writable = bool(words) and words[0] == "rw"
    allowed = words[1:] if words and words[0] in ("ro", "rw") else words
    if len(allowed) > 1 or (words and words[0] == ""):
        raise WrongVolume(f"volume {text[:200]!r}: write {_FORM}")
    return name, checked(name, path, writable=writable, tenants=allowed[0].split(",") if allowed else [])


def checked(name: str, path: str, *, writable: bool = False, tenants: Iterable[str] = ()) -> OfferedVolume:
    """Return a volume that may be offered.  Raises WrongVolume."""
    if not re.fullmatch(VOLUME_PATTERN, name) or name.endswith("\n"):
        raise WrongVolume(f"volume {name[:60]!r}: name it by lower-case letters, digits and dashes, at most 48")
    if not path.startswith("/") or ".." in Path(path).parts or "\0" in path:
        raise WrongVolume(f"volume {name}: {path[:200]!r} is not an absolute path without ..; write {_FORM}")
    folder = Path(path)
    if folder == Path("/") or any(folder.is_relative_to(own) for own in _PRIVATE):
        raise WrongVolume(
            f"volume {name}: {path} holds files that control the machine; offer a folder with data, such as /srv/{name}",
            code="config.volume.not_offerable",
        )
    allowed = tuple(tenants)
    for tenant in allowed:
        if not _TENANT.fullmatch(tenant):
            raise WrongVolume(f"volume {name}: {tenant[:60]!r} is not a tenant; write {_FORM}")
    return OfferedVolume(folder, writable, allowed)


def parse_volumes(texts: Iterable[str]) -> dict[str, OfferedVolume]:
    """Return the volumes of a node, by name.  Raises WrongVolume, also for a name that is there twice."""
    found: dict[str, OfferedVolume] = {}
    for text in texts:
        name, volume = parse_volume(text)
        if name in found:
            raise WrongVolume(f"volume {name}: it is offered twice; leave one out", code="config.volume.twice")
        found[name] = volume
    if len(found) > MOST_OFFERED:
        raise WrongVolume(f"{len(found)} volumes: a node offers at most {MOST_OFFERED}", code="config.volume.too_many")
    return dict(sorted(found.items()))
