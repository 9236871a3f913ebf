"""Folders of the nodes that an app reads or writes: datasets, models, scratch space.

A spec names volumes that nodes offer (`dorm agent --volume`), never paths of a node.  It runs only on nodes that offer all of
them.  They are read-only unless the spec asks for more and the node's configuration allows it.
"""

from __future__ import annotations

import posixpath
import re
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from events.quantities import short
from events.spec.faults import SpecError, unknown_field

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
    for index, one in enumerate(given):
        where = f"volumes[{index}]"
        if not isinstance(one, dict):
            raise SpecError(
                f"{where}: expected a map with name and at, got {short(one)}", code="spec.volumes.wrong_type"
            )
        if "name" not in one:
            raise SpecError(f"{where}.name: missing", code="spec.volumes.name.missing")
        if fault := unknown_field(one, Volume.__struct_encode_fields__, f"{where}."):
            raise SpecError(str(fault), code="spec.volumes.unknown_field")
        if one.get("at") is not None:
            _check_path(f"{where}.at", one["at"])


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
