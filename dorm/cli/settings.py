"""Parsing of settings on the command line and in cluster files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agents.config import OfferedVolume, VolumeSettings, WrongVolume, parse_volumes
from dorm.cli.errors import WrongUsage
from dorm.core.settings import TIMES
from dorm.local.spec_files import parse, read_document
from dorm.policies.registry import names, policy
from events.documents import shape_of
from events.errors import code_of
from events.kinds import PolicyChanged
from events.quantities import MEMORY, Quantity, capacity, resource, resources
from events.runtimes import RUNTIMES, WantedRuntime
from events.spec import SpecError
from events.spec.checking import MOST_ERRORS
from events.spec.faults import readable, shape_faults, unknown_fields

VolumeOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PATH[:rw][:TENANT,...]",
        help="Folder that apps may name in `volumes`. With rw, apps may write to it; with tenants, "
        "only their apps may use it. May be repeated.",
    ),
]


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster on this machine, as for `dorm up --config FILE`."""

    cluster: str | None = None
    agents: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    capacity: Annotated[dict[str, Quantity], msgspec.Meta(min_length=1)] | None = None
    """Resources of each node."""
    runtime: WantedRuntime | None = None
    checkpoints: str | None = None
    volumes: dict[str, VolumeSettings] = {}
    """Folders of this machine that apps may name, by the name."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    policy: str | None = None
    params: dict[str, Any] | None = None
    quiet_ms: int | None = None
    quiet_limit_ms: int | None = None
    idle_s: float | None = None
    heartbeat_s: float | None = None
    node_grace_s: float | None = None
    node_lease_s: float | None = None
    retention_s: float | None = None

    def resources(self) -> dict[str, int] | None:
        """Return the resources of each node, in base units."""
        return resources(self.capacity) if self.capacity else None

    def offered(self) -> dict[str, OfferedVolume]:
        """Return the volumes of each node.  Raises WrongVolume."""
        return {name: volume.offered(name) for name, volume in sorted(self.volumes.items())}

    def change(self) -> PolicyChanged | None:
        """Return the change of the policy and the master's times, None for none.  Raises SpecError."""
        return policy_change(self.policy, self.params, **{name: getattr(self, name) for name in TIMES})


def load_cluster_file(path: Path | None) -> ClusterFile:
    """Return a checked cluster file.  Raises SpecError with the file's name."""
    if path is None:
        return ClusterFile()
    source = read_document(path, shape_of(ClusterFile))
    document = {} if source.value is None else source.value
    try:
        if not isinstance(document, dict):
            text = "a cluster file is a map with settings such as agents, capacity and policy"
            raise SpecError(text, code="cluster_file.not_a_map")
        known = {key: value for key, value in document.items() if key in ClusterFile.__struct_encode_fields__}
        faults = [
            *unknown_fields(document, ClusterFile.__struct_encode_fields__),
            *shape_faults(known, ClusterFile, ClusterFile, {"runtime": f"auto, {' or '.join(RUNTIMES)}"}, {}),
        ]
        if faults:
            first, *others = (SpecError.of(fault, "cluster_file") for fault in faults[:MOST_ERRORS])
            raise SpecError(str(first), code=first.code, others=others)
        file = msgspec.convert(document, ClusterFile)
        file.resources()
        file.offered()
        file.change()
    except SpecError as error:
        raise error.at_lines(source.line).within(str(path)) from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}", code=code_of(error)) from None
    return file


def parse_capacity(text: str | None) -> dict[str, int] | None:
    """Parse `cpu=4,memory=8GiB,gpu=1` into base units.  Raises WrongUsage."""
    try:
        return None if text is None else capacity(text)
    except ValueError as error:
        raise WrongUsage.of(error) from None


def parse_bytes(text: str | None) -> int:
    """Parse `32GiB`; 0 for None.  Raises WrongUsage."""
    try:
        return 0 if text is None else resource(MEMORY, text)
    except ValueError as error:
        raise WrongUsage.of(error) from None


def volumes_of_option(texts: list[str] | None) -> dict[str, OfferedVolume]:
    """Parse repeated `NAME=PATH[:rw][:TENANT,TENANT]`.  Raises WrongUsage."""
    try:
        return parse_volumes(texts or [])
    except WrongVolume as error:
        raise WrongUsage.of(error) from None


def parse_pairs(pairs: list[str] | None, what: str) -> dict[str, str]:
    """Parse repeated `key=value`.  Raises WrongUsage."""
    values = {}
    for pair in pairs or []:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise WrongUsage(f"{what} {pair!r}: write key=value", code="usage.not_a_pair")
        values[key] = value
    return values


def parse_ports(text: str) -> tuple[int, int]:
    """Parse `20000-20999`.  Raises WrongUsage."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if match is None:
        raise WrongUsage(f"ports {text!r}: write first-last, such as 20000-20999", code="usage.ports.malformed")
    return int(match[1]), int(match[2])


def policy_change(name: str | None, params: dict[str, Any] | None, **settings: Any) -> PolicyChanged | None:
    """Return the change that requests these settings, checked; None if there are none.  Raises SpecError."""
    if name is None and not params and all(value is None for value in settings.values()):
        return None
    for setting, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SpecError(f"{setting}: expected a number, got {value}", code=f"settings.{setting}.wrong_type")
    try:
        if name is not None:
            policy(name).check_params(params or {})
    except (LookupError, ValueError) as error:
        raise SpecError(str(error), code=code_of(error)) from None
    # Only explicit settings: another version may have better defaults.
    document = {"kind": "PolicyChanged", "policy": name, "params": params or None, **settings}
    try:
        return msgspec.convert(document, PolicyChanged)
    except msgspec.ValidationError as error:
        raise SpecError.of(readable(error, document, PolicyChanged, {}), "settings") from None


def parse_params(pairs: list[str] | None) -> dict[str, Any]:
    """Parse repeated `theta1=0.2`; values as in YAML.  Raises WrongUsage."""
    try:
        return {key: parse(value) for key, value in parse_pairs(pairs, "parameter").items()}
    except SpecError as error:
        raise WrongUsage(f"parameter: {error}", code=error.code) from None


def complete_policy(incomplete: str) -> list[str]:
    """Names of policies for tab completion, plug-ins included."""
    from dorm import plugins

    return [name for name in (*names(), *plugins.names()) if name.startswith(incomplete)]


def complete_setting(ctx: typer.Context, incomplete: str) -> list[str]:
    """All settings of the cluster for tab completion, as `theta2=`."""
    from dorm.cli.connect import complete
    from dorm.core.query.in_force import words

    return complete(ctx, incomplete, lambda state: [f"{word}=" for word in words(state.settings, state.policy_plugins)])
