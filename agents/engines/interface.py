"""The interface of engines: one container's place in its generation in, what starts it out.

An engine is a pure function `prepare(place) -> Launch`.  It reads no clock, no file and no environment, so a container gets
the same launch from an agent that was restarted, and tests need no cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from events.addresses import joined
from events.kinds import Placed
from events.spec import AppSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias


class Place(msgspec.Struct, frozen=True):
    """One container's place in a generation of its app."""

    app: str
    generation: int
    spec: AppSpec
    placement: tuple[Placed, ...]
    """All containers of the generation, by slot."""
    slot: int
    """Which of them this one is."""
    master_port: int
    """A free port at the first container's address."""
    command: tuple[str, ...]
    """The app's own command: to start, or to resume."""
    folder: str
    """The container's private folder as the container sees it; it holds the files of the launch."""

    @property
    def rank(self) -> int:
        """Return the container's position among the slots."""
        return next(rank for rank, placed in enumerate(self.placement) if placed.slot == self.slot)

    @property
    def own(self) -> Placed:
        return self.placement[self.rank]

    @property
    def size(self) -> int:
        """Return the number of containers."""
        return len(self.placement)

    @property
    def master_address(self) -> str:
        return self.placement[0].address

    def path(self, name: str) -> str:
        """Return the path of one of the launch's files."""
        return f"{self.folder}/{name}"


class Launch(msgspec.Struct, frozen=True):
    """Additions of an engine to a container."""

    command: tuple[str, ...]
    env: dict[str, str] = {}
    """Variables that the app cannot replace: they name places and ports."""
    defaults: dict[str, str] = {}
    """Variables that the app's own `env` replaces."""
    files: dict[str, str] = {}
    """Text of files in the container's private folder, by name; each begins with `dorm-`, because the app's own files
    are there too."""


if TYPE_CHECKING:
    Engine: TypeAlias = Callable[[Place], Launch]


def endpoint(placed: Placed) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return joined(placed.address, placed.port)
