"""The settings file of a cluster on its own machines, checked, since names, addresses and paths go into files that root reads.

DeploymentError    the settings can't be used; the message names the field and says what to write
"""

from __future__ import annotations

import fnmatch
from typing import Annotated, Any

import msgspec

from agents.config import VolumeSettings, WrongVolume
from events.addresses import bracketed
from events.errors import DormError
from events.quantities import MEMORY, Quantity, QuantityError, duration, resource, resources
from events.runtimes import RuntimeName
from events.spec.faults import readable, unknown_field
from events.subjects import ClusterNameError, check_cluster

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
_PLAIN_PATH = r"^/[A-Za-z0-9._/@+-]{0,200}\Z"
_ANY = r"/(?:[^\x00-\x1f\x7f]{0,199}[^\x00-\x1f\x7f \\])?"
_PATH = rf"^{_ANY}\Z"
"""A path as units and tmpfiles.d can have it: a line has no line breaks, and does not end in a space or a backslash."""
_WORD = r"^[\x21-\x7e]{1,500}$"
_PLACE = rf"^\Z|^{_ANY}\Z|^s3://[A-Za-z0-9][A-Za-z0-9._/-]{{0,500}}\Z"

Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
Address = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]{0,252}$|^::[0-9a-fA-F:.]{0,40}$")]
Folder = Annotated[str, msgspec.Meta(pattern=_PATH)]
PlainPath = Annotated[str, msgspec.Meta(pattern=_PLAIN_PATH)]
"""Path of a program, whose first line no shell or kernel reads with spaces in it, or of `EnvironmentFile=`, a pattern."""
Word = Annotated[str, msgspec.Meta(pattern=_WORD)]
Span = Annotated[str, msgspec.Meta(pattern=r"^[0-9][0-9.a-z]{0,30}$")]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_FORMATS = {
    "machines": "the name or address of a machine (letters, digits and '-'), such as n1: 10.0.0.1",
    "servers": "a machine's name",
    "masters": "a machine's name",
    "api": "a machine's name",
    "checkpoints": "an absolute path without control characters, which does not end in a space or a backslash",
    "mount": "the absolute path of a mount point, or none",
    "program": "an absolute path of letters, digits and any of . _ / @ + -",
    "archives.place": "an absolute path without control characters, which does not end in a space or a backslash, or "
    "s3://BUCKET/PREFIX",
    "archives.age": "a duration, such as 30d",
    "archives.keep": "a duration, such as 7d",
    "archives.environment": "an absolute path of letters, digits and any of . _ / @ + -",
    "backup.folder": "an absolute path without control characters, which does not end in a space or a backslash",
    "backup.every": "a time as systemd.time(7) has it, such as daily or *-*-* 03:00",
}


class DeploymentError(DormError):
    """The deployment is not possible as requested."""

    code = "deploy.failed"


class Ports(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where each part listens, on the address of its machine."""

    clients: Port = 4222
    routes: Port = 6222
    """Port for the other NATS servers."""
    monitor: Port = 8222
    """NATS's own monitoring, on loopback only."""
    api: Port = 4280
    master_metrics: Port = 9475
    agent_metrics: Port = 9476
    webhooks_metrics: Port = 9477


class Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the log is copied to, and how often."""

    machines: list[Name] = []
    folder: Folder = "/var/backups/dorm"
    every: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9*:,./~ -]{1,100}$")] = "daily"
    keep: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 14
    metrics: Folder | None = None
    """The folder of text files that Prometheus's node exporter reads; None if nothing reads any."""


class Archives(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the log's past moves to, and when: the masters' options of rotation."""

    place: Annotated[str, msgspec.Meta(pattern=_PLACE)] = ""
    """A folder that the machines of the masters share, or s3://BUCKET/PREFIX; "" for none: then the log is never rotated."""
    size: Quantity | None = None
    """Bytes of the stream from which on it is rotated."""
    age: Span | None = None
    """Age of the stream's oldest records at which it is rotated."""
    keep: Span | None = None
    """Records younger than that stay in the stream; None for the masters' default."""
    environment: PlainPath | None = None
    """A file of variables for the units that use the archives, such as an S3 store's keys; None if they need none."""

    @property
    def folder(self) -> str:
        """Return the folder, "" if the place is not a folder."""
        return self.place if self.place.startswith("/") else ""


class Webhooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which machines deliver webhooks; several share the work."""

    machines: list[Name] = []
    allow: list[Word] = []
    """Networks in addition to the public addresses to which they may deliver, as `dorm webhooks run --allow` takes them."""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent of a machine that runs apps: its options by their names."""

    runtime: RuntimeName = "docker"
    docker: Word | None = None
    gpus: list[Word] = []
    labels: dict[Word, Word] = {}
    capacity: Annotated[dict[Word, Quantity], msgspec.Meta(min_length=1)] | None = None
    ports: Annotated[str, msgspec.Meta(pattern=r"^\d{1,5}-\d{1,5}$")] | None = None
    secrets: Folder | None = None
    allow: list[Word] = []
    allow_images: list[Word] = []
    container_disk: Word | None = None
    trust_apps: bool = False
    firewall: bool = False
    """Whether Docker containers are kept from the NATS servers, Docker engines on TCP and a cloud's metadata address."""
    health_program: Folder | None = None
    """The program that says whether the machine is fit for new containers."""
    health_every: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] | None = None
    """Seconds between two of its runs."""
    health_timeout: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] | None = None
    """Seconds that one run may take."""
    volumes: dict[Name, VolumeSettings] = {}
    """Folders that apps may name, by the name."""


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster and its machines."""

    cluster: str
    machines: Annotated[dict[Name, Address], msgspec.Meta(min_length=1)]
    """Those that others connect to, with the address for that."""
    servers: Annotated[list[Name], msgspec.Meta(min_length=1)]
    checkpoints: Folder
    masters: list[Name] | None = None
    """Default: the machines of the servers."""
    api: list[Name] = []
    nodes: dict[str, Node] = {}
    """Nodes by name, or by a pattern with `*` and `?`; the first that matches counts."""
    mount: Annotated[str, msgspec.Meta(pattern=rf"^(none|{_ANY})\Z")] | None = None
    """Mount point of the file system with the checkpoints.  Default: at that folder; `none` for a cluster of one machine."""
    trust: bool = True
    """Whether the cluster knows its users, and encrypts: False for one that believes all who reach its servers."""
    store_limit: Quantity = "100GiB"
    program: PlainPath = "/opt/dorm"
    """The virtual environment with Dorm on each machine."""
    ports: Ports = Ports()
    backup: Backup = Backup()
    archives: Archives = Archives()
    webhooks: Webhooks = Webhooks()

    def address(self, machine: str) -> str:
        """Return a machine's address for a URL."""
        return bracketed(self.machines[machine])

    def url(self, machine: str = "") -> str:
        """Return the servers' URL for clients; a machine's own server comes first."""
        order = sorted(self.servers, key=lambda server: server != machine)
        scheme = "tls" if self.trust else "nats"
        return ",".join(f"{scheme}://{self.address(server)}:{self.ports.clients}" for server in order)

    @property
    def mount_point(self) -> str:
        """Return where a node needs a mounted file system, "" if it needs none."""
        return "" if self.mount == "none" else (self.mount or self.checkpoints).rstrip("/")

    @property
    def leading(self) -> list[str]:
        """The machines with masters."""
        return self.servers if self.masters is None else self.masters

    def node(self, machine: str) -> Node | None:
        """Return the settings of a machine's agent, None if it has none."""
        return next((node for pattern, node in self.nodes.items() if fnmatch.fnmatchcase(machine, pattern)), None)

    def knows(self, machine: str) -> bool:
        """Return whether the machine has any part of the cluster."""
        return machine in self.machines or self.node(machine) is not None


def check(document: Any) -> Deployment:
    """Return the settings of a document.  Raises DeploymentError."""
    if not isinstance(document, dict):
        raise DeploymentError(
            "the settings of a deployment are a map with cluster, machines, servers and checkpoints; `dorm deploy example` "
            "prints one",
            code="deploy.settings.not_a_map",
        )
    if fault := unknown_field(document, Deployment.__struct_encode_fields__):
        raise DeploymentError(str(fault), code="deploy.settings.unknown_field")
    try:
        deployment = msgspec.convert(document, Deployment)
    except msgspec.ValidationError as error:
        fault = readable(error, document, Deployment, _FORMATS)
        raise DeploymentError(str(fault), code=f"deploy.settings.{fault.code}") from None
    _agree(deployment)
    return deployment


def _agree(deployment: Deployment) -> None:
    """Raises DeploymentError if parts do not fit together."""
    try:
        check_cluster(deployment.cluster)
    except ClusterNameError as error:
        raise DeploymentError(f"cluster: {error}", code="deploy.settings.cluster.malformed") from None
    for field, names in (
        ("servers", deployment.servers),
        ("masters", deployment.masters or []),
        ("api", deployment.api),
        ("backup.machines", deployment.backup.machines),
        ("webhooks.machines", deployment.webhooks.machines),
    ):
        if unknown := [name for name in names if name not in deployment.machines]:
            raise DeploymentError(
                f"{field}: {unknown[0]} is not one of the machines; give it an address under machines",
                code=f"deploy.settings.{field}.unknown_machine",
            )
        if len(set(names)) < len(names):
            raise DeploymentError(f"{field}: a machine is named twice", code=f"deploy.settings.{field}.twice")
    if len(deployment.servers) not in (1, 3, 5):
        raise DeploymentError(
            f"servers: expected 1, 3 or 5, got {len(deployment.servers)}; a majority of them has to be there",
            code="deploy.settings.servers.count",
        )
    if not deployment.leading:
        raise DeploymentError("masters: expected at least one", code="deploy.settings.masters.none")
    if deployment.mount_point and not f"{deployment.checkpoints}/".startswith(f"{deployment.mount_point}/"):
        raise DeploymentError(
            f"mount: {deployment.mount_point} does not hold {deployment.checkpoints}; name the mount point that the "
            "checkpoints lie in",
            code="deploy.settings.mount.elsewhere",
        )
    ports = list(msgspec.structs.astuple(deployment.ports))
    if len(set(ports)) < len(ports):
        raise DeploymentError("ports: two parts have the same port", code="deploy.settings.ports.twice")
    _quantities(deployment)
    _rotation(deployment.archives)
    _networks(deployment.webhooks)


def _networks(webhooks: Webhooks) -> None:
    """Raises DeploymentError for networks that are none."""
    if not webhooks.allow:
        return
    from dorm.webhooks.sending import (
        NetworkError,
        parse_networks,  # It takes long to import.
    )

    try:
        parse_networks(webhooks.allow)
    except NetworkError as error:
        raise DeploymentError(f"webhooks.allow: {error}", code="deploy.settings.webhooks.allow.malformed") from None


def _rotation(archives: Archives) -> None:
    """Raises DeploymentError for a rotation without a place or an occasion, and for invalid times and sizes."""
    if not archives.place:
        if archives != Archives():
            raise DeploymentError(
                "archives.place: missing; name a folder that the masters' machines share, or s3://BUCKET/PREFIX",
                code="deploy.settings.archives.place.missing",
            )
        return
    try:
        if archives.size is not None and resource(MEMORY, archives.size) < 2**20:
            raise DeploymentError(
                "archives.size: expected at least 1MiB; the stream would be rotated all the time",
                code="deploy.settings.archives.size.out_of_range",
            )
    except QuantityError as error:
        raise DeploymentError(f"archives.size: {error}", code="deploy.settings.archives.size.malformed") from None
    for field, span in (("age", archives.age), ("keep", archives.keep)):
        try:
            duration(span or "1d")
        except QuantityError as error:
            raise DeploymentError(
                f"archives.{field}: {error}", code=f"deploy.settings.archives.{field}.malformed"
            ) from None


def _quantities(deployment: Deployment) -> None:
    try:
        if resource(MEMORY, deployment.store_limit) < 2**30:
            raise DeploymentError(
                "store_limit: expected at least 1GiB; heartbeats alone may take a quarter of that",
                code="deploy.settings.store_limit.out_of_range",
            )
    except QuantityError as error:
        raise DeploymentError(f"store_limit: {error}", code="deploy.settings.store_limit.malformed") from None
    for pattern, node in deployment.nodes.items():
        try:
            resources(node.capacity or {})
            resource(MEMORY, node.container_disk or 0)
            for name, volume in node.volumes.items():
                volume.offered(name).option(name)
        except (QuantityError, WrongVolume) as error:
            raise DeploymentError(f"nodes.{pattern}: {error}", code="deploy.settings.nodes.malformed") from None
        if any("=" in key for key in node.labels):
            raise DeploymentError(
                f"nodes.{pattern}.labels: a label's name has no '='", code="deploy.settings.nodes.malformed"
            )
