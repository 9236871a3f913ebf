"""The runtimes of containers, each registered once: what the whole project knows of one by its name.

A new runtime needs

* an entry in `RUNTIMES` here, and its name in the three types,
* a module or a package in `agents/runtime`, which implements `agents.runtime.interface.Runtime`,
* its chooser in `dorm/local/runtimes.py`: whether it is available on this machine, and how one is made for a node,
* a section in `docs/containers.md`.

Nothing else asks for a runtime by its name; `tests/events/test_runtimes.py` looks for such places.  A node announces its
runtime as the name, and what the runtime says about itself (`NodeJoined.runtime`), so readers of logs meet names that this
build does not have.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, NamedTuple

RuntimeName = Literal["docker", "process"]
WantedRuntime = Literal["auto", "docker", "process"]


class RuntimeKind(NamedTuple):
    """What differs between runtimes outside their own code."""

    name: RuntimeName
    words: str
    """The containers, in words."""
    images: bool
    """Whether its containers come from images; otherwise they have the node's files."""
    engine: str = ""
    """The engine behind it, as people call it; "" for none."""
    unit: str = ""
    """The systemd unit of an engine on the node's own machine; "" for none."""
    firewall: bool = False
    """Whether its containers can be kept from the cluster's servers (`dorm agent --firewall on`)."""


_KINDS = (
    RuntimeKind("docker", "Docker containers", images=True, engine="Docker", unit="docker.service", firewall=True),
    RuntimeKind("process", "plain processes", images=False),
)
RUNTIMES: Final[dict[str, RuntimeKind]] = {kind.name: kind for kind in _KINDS}
"""Kinds of runtimes by name, in the order in which `auto` tries them."""
WITHOUT_ENGINE: Final[RuntimeName] = "process"
"""The runtime that needs nothing: what `auto` takes if no engine answers."""


class RuntimeChoice(StrEnum):
    """The runtimes for containers."""

    auto = "auto"
    docker = "docker"
    process = "process"


def runtime_name(announced: str) -> str:
    """Return the name of the runtime that a node announces; another build may have others."""
    return announced.partition(" ")[0]


def runs_images(announced: str) -> bool:
    """Return whether a node's containers come from images, as far as this build knows its runtime."""
    kind = RUNTIMES.get(runtime_name(announced))
    return kind is None or kind.images
