"""Read a container's role from the environment of the engine `ps`: DMLC's variables, and the addresses in DORM_SERVERS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from compose.apps.worker.contract import address, whole
from compose.apps.worker.failures import BadSetting

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Role:
    """One container's part."""

    serves: bool
    number: int
    """Among the servers, or among the workers."""
    servers: tuple[tuple[str, int], ...]
    """Host and port of each."""
    workers: int

    @property
    def label(self) -> str:
        return (
            f"server {self.number} of {len(self.servers)}" if self.serves else f"worker {self.number} of {self.workers}"
        )

    def part(self, server: int, size: int) -> slice:
        """Return which of `size` parameters a server holds."""
        count = len(self.servers)
        return slice(size * server // count, size * (server + 1) // count)


def read_role(environment: Mapping[str, str]) -> Role:
    """Return the role.  Raises `BadSetting` naming the variable that is missing or wrong."""
    role = environment.get("DMLC_ROLE", "")
    if role not in ("server", "worker"):
        raise BadSetting(f"DMLC_ROLE is {role!r}, not server or worker: run it with `engine: ps`")
    servers = tuple(address(text, "DORM_SERVERS") for text in environment.get("DORM_SERVERS", "").split(",") if text)
    if len(servers) != whole(environment, "DMLC_NUM_SERVER", default=0, least=1):
        raise BadSetting(f"DORM_SERVERS names {len(servers)} servers, DMLC_NUM_SERVER {environment['DMLC_NUM_SERVER']}")
    workers = whole(environment, "DMLC_NUM_WORKER", default=0, least=1)
    number = whole(environment, f"DMLC_{role.upper()}_ID", default=-1, least=0)
    if number >= (len(servers) if role == "server" else workers):
        raise BadSetting(f"there is no {role} {number}: DMLC_NUM_{role.upper()} is too small")
    return Role(role == "server", number, servers, workers)
