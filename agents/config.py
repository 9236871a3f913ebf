"""The settings of a node, and the detection of those that are not given.

Volumes are given as `dorm agent --volume NAME=PATH[:rw][:TENANT,TENANT]`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agents.runtime.docker.container_config import FREEDOMS, is_allowance
from events.errors import DormError
from events.kinds import MOST_OFFERED
from events.quantities import GPU
from events.spec.provided import VOLUME_PATTERN
from events.spec.requirements import is_label

if TYPE_CHECKING:
    from collections.abc import Iterable


# --- volumes ----------------------------------------------------------------------------------------------------------

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
    """Tenants whose apps may use it; empty for everybody's."""

    def option(self, name: str) -> str:
        """Return the volume as an option of `dorm agent`.  Raises WrongVolume for a path that none could hold."""
        if ":" in str(self.path):
            raise WrongVolume(f"volume {name}: {self.path} holds a colon; offer it under another path, such as a link")
        options = ["rw"] if self.writable else []
        return ":".join([f"{name}={self.path}", *options, *([",".join(self.tenants)] if self.tenants else [])])


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
    path, *options = rest.split(":")
    if not separator or not path or len(options) > 2:
        raise WrongVolume(f"volume {text[:200]!r}: write {_FORM}")
    writable = bool(options) and options[0] == "rw"
    allowed = options[1:] if options and options[0] in ("ro", "rw") else options
    if len(allowed) > 1 or (options and options[0] == ""):
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
    volumes: dict[str, OfferedVolume] = {}
    for text in texts:
        name, volume = parse_volume(text)
        if name in volumes:
            raise WrongVolume(f"volume {name}: it is offered twice; leave one out", code="config.volume.twice")
        volumes[name] = volume
    if len(volumes) > MOST_OFFERED:
        raise WrongVolume(
            f"{len(volumes)} volumes: a node offers at most {MOST_OFFERED}", code="config.volume.too_many"
        )
    return dict(sorted(volumes.items()))


# --- settings ---------------------------------------------------------------------------------------------------------

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
    """Rights of containers beyond the restricted profile, for all tenants or for one
    (`agents.runtime.docker.container_config`)."""
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
    """The operator's program that says whether this node is fit (`agents.fitness`); None for none."""
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
            again = next(gpu for index, gpu in enumerate(self.gpus) if gpu in self.gpus[:index])
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

        for folder in (self.checkpoints, self.secrets, *(volume.path for volume in self.volumes.values())):
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
