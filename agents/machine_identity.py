"""Which machine publishes under a node's name: a random identity, kept in the node's folder across restarts of the agent.

    ROOT/identity    IDENTITY MACHINE RUNTIME_ROOT

A folder copied to another machine must not publish as the first one, so the record also names the machine (its machine-id).
Nor may a folder that has lost its runtime's records, and so the knowledge of what still runs (`Runtime.root_id`).  If either
differs, a new identity is drawn.  Machines cloned with their machine-id, and machines without one, can't be distinguished
this way."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agents.runtime.interface import Conflict
from events.durable import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents.desired import Desired

FILE: Final = "identity"
_UNKNOWN: Final = "-"
_RECORD: Final = re.compile(r"([0-9a-f]{32}) (\S+) (\S+)\n")


def machine_id() -> str:
    """Return the machine's id, see machine-id(5); "" if it has none."""
    try:
        return Path("/etc/machine-id").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Identity:
    """The identity in one node's folder; `value` is "" until it is loaded.  `process` distinguishes this process of
    the agent from those before and after it."""

    def __init__(self, root: Path, machine: Callable[[], str] = machine_id) -> None:
        self.value = ""
        self.process = secrets.token_hex(16)
        self._path = root / FILE
        self._machine = machine

    def load(self, runtime_root: str) -> None:
        """Load or create the identity.  Blocks.  The caller holds the folder's lock.  Raises Conflict if the record is
        malformed, OSError."""
        machine = "".join(self._machine().split()) or _UNKNOWN
        if self._path.exists():
            known = _RECORD.fullmatch(self._path.read_text(errors="replace"))
            if known is None:
                raise Conflict(
                    f"{self._path} holds no identity: restore it, or remove it to join as another machine",
                    code="identity.malformed",
                )
            same_machine = _UNKNOWN in (machine, known[2]) or machine == known[2]
            if same_machine and runtime_root == known[3]:
                self.value = known[1]
                return
        self.value = secrets.token_hex(16)
        # Durable before anything is published under it: a crash must not make this another machine.
        write_whole(self._path, f"{self.value} {machine} {runtime_root}\n".encode())


def refusal(desired: Desired) -> str:
    """Return why the node's name is unavailable, for how long, and what to do."""
    name, where, lease = desired.node, f" at {desired.held_at}" if desired.held_at else "", f"{desired.lease_s:g} s"
    if desired.condition == "up":
        return (
            f"another machine{where} holds the name {name}: start this one with another --name, or stop the other agent; this "
            f"one waits, and takes over once the other has not been heard for its lease ({lease}) and a margin"
        )
    return (
        f"another machine{where}, or this one with an earlier folder, holds the name {name} and is silent: its containers "
        f"may still run, so this machine waits until the lease ({lease}) and a margin are over, and then takes over; to use "
        "it now, start it with another --name"
    )
