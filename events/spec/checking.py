"""The gate for specs: `check_spec` accepts a document, or tells its author in one line what to change.

Only `check_spec` makes a `CheckedSpec`: code that needs a valid spec takes one, and need not check it again.  A spec is
checked twice on its way: by the client, which can explain it to its author at once, and by the master, which believes no
client.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from events.spec.abilities import requirement_with
from events.spec.amounts import amount_faults
from events.spec.engines import ENGINES, check_command, check_options, check_role_counts
from events.spec.faults import Fault, SpecError, misshapen, unknown_fields
from events.spec.gates import After, check_gates
from events.spec.groups import check_group, completed, written
from events.spec.notify import as_map, check_notify
from events.spec.provided.environment import check_environment, check_environment_form
from events.spec.provided.volumes import check_volumes, check_volumes_form
from events.spec.requirements import RequirementError, requirement
from events.spec.secrets import check_secrets
from events.spec.spec import PARTS, SIGNALS, AppSpec, CheckedSpec
from events.spec.texts import check_texts, field_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

LARGEST_SPEC = 256 * 1024
"""Bytes of a spec in MessagePack; larger ones are refused."""

_FORMATS = {
    "name": "lower-case letters, digits and dashes, at most 48",
    "user": "letters, digits and _ @ + -, at most 64",
    "engine": f"{', '.join(ENGINES[:-1])} or {ENGINES[-1]}",
    "engine_options.rendezvous": "static or c10d",
    "placement": "spread or pack",
    "stop_signal.signal": f"{', '.join(SIGNALS[:-1])} or {SIGNALS[-1]}",
    "stop_signal.to": "main or group",
    "after[]": "the name or id of an app",
    "after[].app": "the name or id of an app",
    "after[].when": "completed, failed or ended",
    "elastic": "live",
    "on_doubtful": "resume or fall_back",
    "resizable": "auto or never",
    "from": "the name or id of an app, or APP@STEP",
    "secrets": "a variable's name (letters, digits and _, at most 127)",
    "group.name": "lower-case letters, digits and dashes, at most 42",
    "group.parameters": "a parameter's name (letters, digits and _, at most 63)",
    "demand": "a resource name (letters, digits and _ . / -, at most 63)",
    "python": "a version in quotes such as '3.12', or an absolute path",
    "volumes": "a volume's name (lower-case letters, digits and dashes, at most 48)",
}


MOST_ERRORS = 20
"""Errors of one document that are listed."""
_INSTEAD: dict[str, Any] = {"name": "x", "command": ["x"], "demand": {"cpu": 1}}
"""What a document without these fields is checked with further."""


def check_spec(document: object, *, every: bool = False) -> CheckedSpec:
    """Return a checked spec from a decoded document.  Raises SpecError; with `every`, its `others` are what else is wrong with
    the document, at most `MOST_ERRORS` in all."""
    made: list[CheckedSpec] = []
    errors = list(islice(_errors(document, made), MOST_ERRORS if every else 1))
    if errors:
        raise SpecError(str(errors[0]), code=errors[0].code, others=errors[1:])
    return made[0]


def _errors(document: object, made: list[CheckedSpec]) -> Iterator[SpecError]:
    """Yield everything that is wrong with a document; if nothing is, append the checked spec to `made`.  What follows from
    another error alone is no error: a check is left out if a field that it needs is wrong already."""
    if not isinstance(document, dict):
        text = f"a spec is a map with name, command and demand, not {_kind_of(document)}"
        yield SpecError(text, code="spec.not_a_map")
        return
    whole = document = as_map(document)
    if isinstance(name := document.get("stop_signal"), str):
        whole = document = {**document, "stop_signal": {"signal": name}}
    wrong: set[str] = set()
    for fault in _unknown_fields(document):
        wrong.add(field_of(fault.text.partition(":")[0]))
        yield SpecError.of(fault)
    for check in (check_volumes_form, check_environment_form):
        try:
            check(document)
        except SpecError as error:
            yield error
            document = {key: value for key, value in document.items() if key != field_of(str(error).partition(":")[0])}
    wrong |= {key for key in whole if key not in document}
    try:
        try:
            spec = msgspec.convert(document, CheckedSpec)
        except msgspec.ValidationError:
            document = {key: value for key, value in document.items() if isinstance(key, str)}
            for fault in misshapen(document, CheckedSpec, AppSpec, _FORMATS, _INSTEAD):
                wrong.add(field_of(fault.text.partition(":")[0]))
                yield SpecError.of(fault)
            spec = msgspec.convert(document, CheckedSpec)
    except UnicodeEncodeError:
        yield SpecError("a text in the spec is not valid Unicode; write it again", code="spec.not_unicode")
        return
    except RecursionError:
        yield SpecError("the spec is nested too deeply", code="spec.too_deep")
        return
    if "n_min" not in document:
        spec = msgspec.structs.replace(spec, n_min=spec.gang)
    if "n_max" not in document:
        spec = msgspec.structs.replace(spec, n_max=spec.n_min)
    for found in _faults(spec, wrong):
        wrong.add(field_of(str(found).partition(":")[0]))
        yield found
    if "group" not in wrong:
        spec = msgspec.structs.replace(spec, env=completed(spec.group, written(spec.group, spec.env)))
    size = 0 if wrong else len(msgspec.msgpack.encode(spec))
    if size > LARGEST_SPEC:
        wrong.add("size")
        yield SpecError(f"the spec has {size:,} bytes; at most {LARGEST_SPEC:,} are taken", code="spec.too_large")
    for found in _raised(lambda: check_secrets(spec)):
        wrong.add("secrets")
        yield found
    if not wrong:
        made.append(spec)


def _faults(spec: CheckedSpec, wrong: Set[str]) -> Iterator[SpecError]:
    """Yield what is wrong with fields that have the right types.  `wrong` has those that have not."""
    own = msgspec.structs.replace(spec, env=written(spec.group, spec.env))
    checks: tuple[tuple[set[str], Callable[[], None]], ...] = (
        ({"gang", "n_min", "n_max"}, lambda: check_gang(spec.gang, n_min=spec.n_min, n_max=spec.n_max)),
        ({"n_min", "n_max"}, lambda: _check_bounds(spec)),
        ({"engine", "engine_options", "n_min"}, lambda: check_roles(spec, spec.n_min)),
        ({"engine", "command"}, lambda: check_command(spec.engine, spec.command)),
        ({"engine", "resume"}, lambda: check_command(spec.engine, spec.resume)),
        ({"elastic", "resizable"}, lambda: _check_resizable(spec)),
        ({"speed", "speed_on"}, lambda: _check_speed(spec)),
        ({"batch"}, lambda: _check_batch(spec)),
        ({"require"}, lambda: _check_requirement(spec)),
    )
    for needs, check in checks:
        if not needs & wrong:
            yield from _raised(check)
    bad = False
    for error in amount_faults(spec):
        bad = True
        yield error
    rest: tuple[tuple[set[str], Callable[[], None]], ...] = (
        ({"start_after", "max_runtime", "after"}, lambda: None if bad else check_gates(spec)),
        ({"notify"}, lambda: check_notify(spec.notify)),
        ({"group"}, lambda: check_group(spec.group)),
        ({"group", "env", "secrets", "labels"}, lambda: check_texts(own)),
        ({"volumes"}, lambda: check_volumes(spec.volumes)),
        ({"requirements", "python"}, lambda: check_environment(spec.requirements, spec.python)),
    )
    for needs, check in rest:
        if not needs & wrong:
            yield from _raised(check)


def _raised(check: Callable[[], None]) -> Iterator[SpecError]:
    try:
        check()
    except SpecError as error:
        yield error


def _check_resizable(spec: AppSpec) -> None:
    if spec.elastic and spec.resizable == "never":
        text = "resizable: never excludes elastic: live, which lets an app be resized while it trains; leave out one of them"
        raise SpecError(text, code="spec.resizable.live")


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


def _unknown_fields(document: dict[Any, Any]) -> Iterator[Fault]:
    yield from unknown_fields(document, AppSpec.__struct_encode_fields__)
    for name, kind in PARTS.items():
        nested = document.get(name)
        if isinstance(nested, dict):
            yield from unknown_fields(nested, kind.__struct_encode_fields__, f"{name}.")
    after = document.get("after")
    for entry in after if isinstance(after, list) else ():
        if isinstance(entry, dict):
            yield from unknown_fields(entry, After.__struct_encode_fields__, "after.")


def _check_bounds(spec: AppSpec) -> None:
    if spec.n_min > spec.n_max:
        raise SpecError(f"n_min: {spec.n_min} is more than n_max, which is {spec.n_max}", code="spec.n_min.above_n_max")


def _check_requirement(spec: AppSpec) -> None:
    try:
        requirement(spec.require)
        requirement(requirement_with(spec))
    except RequirementError as error:
        raise SpecError.at("require", error) from None


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
