"""What a machine's unit files say about its parts, for commands that run there without options."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from dorm.deploy import layout

if TYPE_CHECKING:
    from pathlib import Path

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
        text = (root / layout.UNITS.lstrip("/") / "dorm-agent.service").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    return agent_of(text)


def agent_of(unit: str) -> InstalledAgent | None:
    """Return the node that a unit's `ExecStart=` names; None if it does not name the node completely."""
    command = next((line for line in unit.splitlines() if line.startswith("ExecStart=")), "")
    try:
        words = [_DOUBLED.sub(r"\1", word) for word in shlex.split(command.removeprefix("ExecStart="))]
    except ValueError:
        return None
    given = dict(pairwise(words))
    found = [given.get(option, "") for option in ("--name", "--data", "--checkpoints")]
    return InstalledAgent(*found) if all(found) else None
