"""The gate for specs: `check_spec` accepts a document, or tells its author in one line what to change.

Only `check_spec` makes a `CheckedSpec`: code that needs a valid spec takes one, and need not check it again.  A spec is
checked twice on its way: by the client, which can explain it to its author at once, and by the master, which believes no
client.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from events.spec.abilities import requirement_with
from events.spec.amounts import check_amounts
from events.spec.engines import ENGINES, check_command, check_options, check_role_counts
from events.spec.faults import SpecError, readable, unknown_field
from events.spec.gates import After, check_gates
from events.spec.groups import check_group, completed, written
from events.spec.notify import as_map, check_notify
from events.spec.provided.environment import check_environment, check_environment_form
from events.spec.provided.volumes import check_volumes, check_volumes_form
from events.spec.requirements import RequirementError, requirement
from events.spec.secrets import check_secrets
from events.spec.spec import PARTS, AppSpec, CheckedSpec
from events.spec.texts import check_texts

LARGEST_SPEC = 256 * 1024
"""Bytes of a spec in MessagePack; larger ones are refused."""

_FORMATS = {
    "name": "lower-case letters, digits and dashes, at most 48",
    "user": "letters, digits and _ @ + -, at most 64",
    "engine": f"{', '.join(ENGINES[:-1])} or {ENGINES[-1]}",
    "engine_options.rendezvous": "static or c10d",
    "placement": "spread or pack",
    "after[]": "the name or id of an app",
    "after[].app": "the name or id of an app",
    "after[].when": "completed, failed or ended",
    "elastic": "live",
    "resizable": "auto or never",
    "from": "the name or id of an app, or APP@STEP",
    "secrets": "a variable's name (letters, digits and _, at most 127)",
    "group.name": "lower-case letters, digits and dashes, at most 42",
    "group.parameters": "a parameter's name (letters, digits and _, at most 63)",
    "demand": "a resource name (letters, digits and _ . / -, at most 63)",
    "python": "a version in quotes such as '3.12', or an absolute path",
    "volumes": "a volume's name (lower-case letters, digits and dashes, at most 48)",
}


def check_spec(document: object) -> CheckedSpec:
    """Return a checked spec from a decoded document.  Raises SpecError."""
    if not isinstance(document, dict):
        text = f"a spec is a map with name, command and demand, not {_kind_of(document)}"
        raise SpecError(text, code="spec.not_a_map")
    document = as_map(document)
    _check_fields(document)
    check_volumes_form(document)
    check_environment_form(document)
    try:
        spec = msgspec.convert(document, CheckedSpec)
    except msgspec.ValidationError as error:
        raise SpecError.of(readable(error, document, AppSpec, _FORMATS)) from None
    except RecursionError:
        raise SpecError("the spec is nested too deeply", code="spec.too_deep") from None
    if "n_min" not in document:
        spec = msgspec.structs.replace(spec, n_min=spec.gang)
    if "n_max" not in document:
        spec = msgspec.structs.replace(spec, n_max=spec.n_min)
    check_gang(spec.gang, n_min=spec.n_min, n_max=spec.n_max)
    if spec.n_min > spec.n_max:
        raise SpecError(f"n_min: {spec.n_min} is more than n_max, which is {spec.n_max}", code="spec.n_min.above_n_max")
    check_roles(spec, spec.n_min)
    if spec.elastic and spec.resizable == "never":
        text = "resizable: never excludes elastic: live, which lets an app be resized while it trains; leave out one of them"
        raise SpecError(text, code="spec.resizable.live")
    for command in (spec.command, spec.resume):
        check_command(spec.engine, command)
    _check_speed(spec)
    _check_batch(spec)
    try:
        requirement(spec.require)
        requirement(requirement_with(spec))
    except RequirementError as error:
        raise SpecError.at("require", error) from None
    check_amounts(spec)
    check_gates(spec)
    check_notify(spec.notify)
    check_group(spec.group)
    spec = msgspec.structs.replace(spec, env=written(spec.group, spec.env))
    check_texts(spec)
    spec = msgspec.structs.replace(spec, env=completed(spec.group, spec.env))
    check_volumes(spec.volumes)
    check_environment(spec.requirements, spec.python)
    size = len(msgspec.msgpack.encode(spec))
    if size > LARGEST_SPEC:
        raise SpecError(f"the spec has {size:,} bytes; at most {LARGEST_SPEC:,} are taken", code="spec.too_large")
    check_secrets(spec)
    return spec


def check_gang(gang: int, **bounds: int) -> None:
    """Refuse the first bound that would split a gang.  Raises SpecError."""
    for name, bound in bounds.items():
        if bound % gang:
            below, above = bound - bound % gang, bound - bound % gang + gang
            multiples = f"{below} or {above}" if below else f"{above}"
            raise SpecError(
                f"{name}: {bound} is not a multiple of gang, which is {gang}; write {multiples}",
                code=f"spec.{name}.splits_gang",
            )


def check_roles(spec: AppSpec, n_min: int) -> None:
    """Refuse options that the engine does not have, and an n_min with which a role would have no container.  Raises
    SpecError."""
    check_options(spec.engine, spec.engine_options)
    check_role_counts(spec.engine, spec.engine_options, n_min)


def _check_fields(document: dict[Any, Any]) -> None:
    fault = unknown_field(document, AppSpec.__struct_encode_fields__)
    for name, kind in PARTS.items():
        nested = document.get(name)
        if not fault and isinstance(nested, dict):
            fault = unknown_field(nested, kind.__struct_encode_fields__, f"{name}.")
    after = document.get("after")
    for entry in after if isinstance(after, list) and not fault else ():
        if isinstance(entry, dict):
            fault = fault or unknown_field(entry, After.__struct_encode_fields__, "after.")
    if fault:
        raise SpecError.of(fault)


def _check_speed(spec: AppSpec) -> None:
    curves = {"speed": spec.speed, **{f"speed_on.{kind}": points for kind, points in spec.speed_on.items()}}
    for name, points in curves.items():
        for index, ((before, _), (count, _)) in enumerate(pairwise(points), start=1):
            if count <= before:
                order = f"{count} containers come after {before}; list each count once, ascending"
                raise SpecError(f"{name}[{index}]: {order}", code="spec.speed.not_ascending")


def _check_batch(spec: AppSpec) -> None:
    if spec.batch is not None and not spec.batch.least <= spec.batch.initial <= spec.batch.most:
        text = (
            f"batch: initial is {spec.batch.initial}; it must be between least ({spec.batch.least}) "
            f"and most ({spec.batch.most})"
        )
        raise SpecError(text, code="spec.batch.initial_outside")


def _kind_of(document: object) -> str:
    names = {
        type(None): "nothing",
        str: "text",
        list: "a list",
        int: "a number",
        float: "a number",
        bytes: "bytes",
    }
    return names.get(type(document), type(document).__name__)
