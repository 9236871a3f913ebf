"""`APP[/RANK]:PATH`: which file of which app."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from dorm.cli.errors import WrongUsage
from events.copying import AREAS

if TYPE_CHECKING:
    from events.copying import Area

_REMOTE = re.compile(r"(?P<app>[A-Za-z0-9][A-Za-z0-9_-]*)(?:/(?P<rank>[0-9]{1,6}))?:(?P<path>.*)", re.DOTALL)
_INSIDE = re.compile(r"/dorm/(outputs|checkpoints)(?:/|$)")


class Named(NamedTuple):
    """A place in one of an app's folders."""

    app: str
    rank: int | None
    area: Area
    path: str


def named(word: str) -> Named | None:
    """Return the file that a word names, None if it is a path on this machine.  The path's first name says which folder
    is meant; without one of these names it is the outputs.  Raises WrongUsage."""
    match = _REMOTE.fullmatch(word)
    if match is None:
        return None
    path = match["path"]
    if inside := _INSIDE.match(path):
        path = inside[1] + "/" + path[inside.end() :]
    if path.startswith("/"):
        raise WrongUsage(
            f"{word}: a path begins with {', '.join(AREAS)}, or is one in the outputs; images and nodes are not copied from",
            code="files.path.outside",
        )
    first, _, rest = path.partition("/")
    area = next((area for area in AREAS if area == first), None)
    rank = int(match["rank"]) if match["rank"] else None
    if area is None:
        area, rest = "outputs", path
    if rank is not None and area != "work":
        raise WrongUsage(
            f"{word}: all ranks share the {area}; leave out /{rank}, or name what is in its own folder with "
            f"{match['app']}/{rank}:work/…",
            code="usage.conflict",
        )
    return Named(match["app"], rank, area, rest)
