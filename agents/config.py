"""The settings of a node, and the detection of those that are not given."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from agents.runtime.docker.profile import FREEDOMS, is_allowance
from agents.volumes.configuration import OfferedVolume
from events.errors import DormError
from events.quantities import GPU
from events.spec.requirements import is_label

_NODE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")
DEFAULT_PORTS = (20_000, 20_999)
LONGEST_HEALTH_S = 86_400.0
"""The longest pause between two runs of a health program, and the longest time for one."""
HEALTH_EVERY_S = 60.0
HEALTH_TIMEOUT_S = 30.0
HIGHEST_PORT = 32_767
"""Above this the kernel assigns ports to outgoing connections, so a container's port could be taken at any time."""


class ConfigError(DormError, ValueError):
    """A setting that can't be used; the message names it and says what would work."""

    code = "config.invalid"


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One node.  Capacity is in base units."""

    name: str
    address: str
    capacity: dict[str, int]
    checkpoints: Path
    """A folder that all nodes share; each app gets one below it."""
    ports: tuple[int, int] = DEFAULT_PORTS
    labels: dict[str, str] = {}
    gpus: tuple[str, ...] = ()
    report_interval_s: float = 5.0
    progress_interval_s: float = 1.0
    secrets: Path | None = None
    """The folder of users' secrets (`agents.runtime.secrets`); None if this node has none."""
    allow: tuple[str, ...] = ()
    """What containers may do beyond the restricted profile, for all tenants or for one (`agents.runtime.docker.profile`)."""
    images: tuple[str, ...] = ()
    """Patterns of the images that Docker containers may have; none for any."""
    trust_apps: bool = False
    """Whether plain processes of several tenants may run here."""
    container_disk: int = 0
    """Bytes that a Docker container may write to this node's disk; 0 for the default."""
    container_user: str | None = None
    """`UID:GID` of all containers; None for one user per tenant."""
    volumes: dict[str, OfferedVolume] = {}
    """Folders that it offers to apps, by name."""
    pythons: tuple[str, ...] = ()
    """Versions of Python that plain processes may choose."""
    health_program: Path | None = None
    """The operator's program that says whether this node is fit (`agents.health_program`); None for none."""
    health_every_s: float = HEALTH_EVERY_S
    health_timeout_s: float = HEALTH_TIMEOUT_S

    def __post_init__(self) -> None:
        if not _NODE.match(self.name):
            raise ConfigError(
                f"node name {self.name!r}: use letters, digits, '-' and '_', at most 63", code="config.name.malformed"
            )
        if len(self.address) > 255:
            raise ConfigError(
                f"address {self.address[:60]}...: use a host name or an IP address, at most 255 characters",
                code="config.address.too_long",
            )
        low, high = self.ports
        if not 1024 <= low <= high <= HIGHEST_PORT:
            raise ConfigError(
                f"ports {low}-{high}: use a range within 1024-{HIGHEST_PORT}", code="config.ports.out_of_range"
            )
        if not self.capacity or any(amount < 0 for amount in self.capacity.values()):
            raise ConfigError(
                "capacity: say how much of each resource the node has, such as cpu=8,memory=32GiB",
                code="config.capacity.missing",
            )
        for label in self.labels:
            if not is_label(label):
                raise ConfigError(
                    f"label {label!r}: no app could require it; start its name with a letter, use letters, digits "
                    "and _ . / -, and none of the words and, or, not, in, has",
                    code="config.labels.malformed",
                )
        for allowance in self.allow:
            if not is_allowance(allowance):
                raise ConfigError(
                    f"allow {allowance!r}: use {', '.join(FREEDOMS)}, for one tenant TENANT:FREEDOM",
                    code="config.allow.unknown",
                )
        if len(set(self.gpus)) != len(self.gpus):
            again = next(one for index, one in enumerate(self.gpus) if one in self.gpus[:index])
            raise ConfigError(
                f"--gpu {again} is given twice; name each card once, best by its UUID (`nvidia-smi -L`)",
                code="config.gpus.twice",
            )
        if self.health_program is not None and not self.health_program.is_absolute():
            raise ConfigError(
                f"health program {str(self.health_program)[:200]!r}: name it by its absolute path",
                code="config.health_program.malformed",
            )
        if not (0 < self.health_timeout_s <= LONGEST_HEALTH_S and 0 < self.health_every_s <= LONGEST_HEALTH_S):
            raise ConfigError(
                f"health program: run it every {self.health_every_s:g} s for at most {self.health_timeout_s:g} s? Use more "
                "than 0 and at most a day",
                code="config.health_program.times",
            )
        if self.gpus and self.capacity.get(GPU, 0) != len(self.gpus):
            raise ConfigError(
                f"capacity says {self.capacity.get(GPU, 0)} GPUs, and {len(self.gpus)} ids are given",
                code="config.gpus.differs",
            )

        for folder in (self.checkpoints, self.secrets, *(one.path for one in self.volumes.values())):
            check_folder(folder)

    def announced(self, runtime: str) -> str:
        """Return a runtime's name with what it allows beyond the restricted profile, for display."""
        more = [*self.allow, *(["trust-apps"] if self.trust_apps else [])]
        return f"{runtime} ({', '.join(more)})" if more else runtime

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """GPU ids to assign to containers; counted from 0 if only their number is configured."""
        return self.gpus or tuple(str(index) for index in range(self.capacity.get(GPU, 0)))


def check_folder(folder: Path | None) -> None:
    """Raises ConfigError for a folder whose path is no text.  Any other path that the file system allows will do: specs, the
    log and the records of containers name folders in UTF-8, and nothing else restricts them."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        shown = str(folder).encode("utf-8", "backslashreplace").decode()
        raise ConfigError(
            f"the path {shown} is not UTF-8, and apps' specs could not name it: choose another folder, or rename it",
            code="config.path.not_utf8",
        ) from None
