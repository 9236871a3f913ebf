"""One document with `array` or `sweep` becomes the specs of its apps.

    array: 20                            20 apps that differ in DORM_ARRAY_INDEX alone
    sweep: {lr: [0.1, 0.01], seed: {range: 5}}
                                         every combination: 10 apps, the last parameter changes fastest
    mode: list                           the first values of all parameters, then the second ones, and so on
    sweep: [{lr: 0.1}, {lr: 0.01}]       the combinations one by one
    parallel: 4                          at most 4 of them at once

How many there would be is computed before any is made, so a sweep of millions costs nothing but its refusal.

*Placeholders* are parameters in commands and variables: `--lr {lr}` becomes `--lr 0.1`.  A name in braces is a
placeholder.  `${NAME}` is left to the shell, and so is everything in braces that is not a name; `{{name}}` stands for
the text `{name}`.
"""

from __future__ import annotations

import hashlib
import re
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec

from events.quantities import short
from events.spec.checking import check_spec
from events.spec.faults import SpecError
from events.spec.groups import LONGEST_NAME, MOST_APPS, Group, ParameterName, Setting, as_text, check_group
from events.spec.spec import CheckedSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# --- placeholders -----------------------------------------------------------------------------------------------------

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LISTS = ("command", "resume", "checkpoint")
_MAPS = ("env", "labels")


def check_placeholders(document: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse placeholders of names that are not parameters.  Raises SpecError."""
    for path, text in _texts(document):
        for match in _PLACEHOLDER.finditer(text):
            if match[2] and match[2] not in known:
                raise SpecError(
                    f"{path}: {{{match[2]}}} is no parameter; the parameters are {', '.join(known)}, and "
                    f"{{{{{match[2]}}}}} stands for the text itself",
                    code="sweep.placeholder.unknown",
                )


def filled(document: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the document with the values in place of their placeholders."""

    def fill(text: Any) -> Any:
        if not isinstance(text, str) or "{" not in text:
            return text
        return _PLACEHOLDER.sub(lambda match: f"{{{match[1]}}}" if match[1] else values.get(match[2], match[0]), text)

    made = dict(document)
    for field in _LISTS:
        if isinstance(made.get(field), list):
            made[field] = [fill(part) for part in made[field]]
    for field in _MAPS:
        if isinstance(made.get(field), dict):
            made[field] = {name: fill(value) for name, value in made[field].items()}
    return made


def _texts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    texts = []
    for field in _LISTS:
        parts = document.get(field)
        if isinstance(parts, list):
            texts += [(f"{field}[{index}]", part) for index, part in enumerate(parts) if isinstance(part, str)]
    for field in _MAPS:
        entries = document.get(field)
        if isinstance(entries, dict):
            texts += [(field, value) for value in entries.values() if isinstance(value, str)]
    return texts


# --- the fields as JSON Schema ----------------------------------------------------------------------------------------

_SETTING = {"type": ["boolean", "number", "string"]}
_BOUNDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}
_RANGE = {
    "type": "object",
    "properties": {"range": {"anyOf": [{"type": "integer"}, _BOUNDS]}},
    "required": ["range"],
    "additionalProperties": False,
}
_VALUES = {"anyOf": [_SETTING, {"type": "array", "items": _SETTING, "minItems": 1}, _RANGE]}
_NAME = {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,62}$"}


def fields() -> dict[str, Any]:
    """Return the fields' schemas by name."""
    return {
        "array": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_APPS,
            "description": "so many apps that differ in DORM_ARRAY_INDEX alone",
        },
        "sweep": {
            "description": "parameters with their values, all combinations of which are apps; or the combinations one by one",
            "anyOf": [
                {"type": "object", "propertyNames": _NAME, "additionalProperties": _VALUES, "minProperties": 1},
                {
                    "type": "array",
                    "items": {"type": "object", "propertyNames": _NAME, "additionalProperties": _SETTING},
                    "minItems": 1,
                },
            ],
        },
        "mode": {
            "enum": ["grid", "list"],
            "description": "all combinations, or the first values of all parameters, then the second ones, and so on",
        },
        "parallel": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_APPS,
            "description": "how many of the apps may run at once, 0 for no limit",
        },
    }


# --- the specs of the apps --------------------------------------------------------------------------------------------

FIELDS = ("array", "sweep", "mode", "parallel")
"""Fields that a spec may have beyond an app's own, to be several apps."""
MOST = 1000
"""Apps of one sweep, unless more are allowed by name."""
INDEX = "index"
"""The placeholder of an app's number."""
_MOST_BYTES = 64 * 1024 * 1024
"""Bytes that the specs of all apps may have: each repeats what the document says once."""
_DIGITS = 4
_MOST_PARAMETERS = 64
_Parameters = dict[str, Setting]


class Sweep(msgspec.Struct, frozen=True):
    """The apps of one document."""

    name: str
    specs: tuple[CheckedSpec, ...]
    """Specs in the order of their indexes."""
    digest: str
    """Digest of the document: the same sweep is submitted under the same ids."""

    @property
    def parallel(self) -> int:
        """How many of them may run at once, 0 for no limit."""
        group = self.specs[0].group
        return group.parallel if group is not None else 0


def is_sweep(document: object) -> bool:
    """Return whether a document describes several apps."""
    return isinstance(document, dict) and any(field in document for field in FIELDS)


def expanded(document: Mapping[str, Any], *, most: int = MOST) -> Sweep:
    """Return the apps of a document.  Raises SpecError with all that is wrong with it, also if the apps would be more than
    `most`."""
    base = {field: value for field, value in document.items() if field not in FIELDS}
    try:
        rows, count = _rows(document, min(most, MOST_APPS))
        name, parallel = _name_of(base), _parallel_of(document)
        if "group" in base:
            raise SpecError("group: a sweep makes the groups of its apps; leave it out", code="sweep.group")
        digest = digest_of(document)
    except SpecError as error:
        raise SpecError(str(error), code=error.code, others=_errors_of(base)) from None
    specs, size = [], 0
    for index, parameters in enumerate(rows):
        group = Group(name=name, run=digest, index=index, count=count, parallel=parallel, parameters=parameters)
        if not index:
            check_group(group)
            _check_first(base, {**parameters, INDEX: 0})
        values = {INDEX: str(index), **{key: as_text(value) for key, value in parameters.items()}}
        made = {**filled(base, values), "name": app_name(name, index), "group": msgspec.to_builtins(group)}
        specs.append(check_spec(made, every=not index))
        size += len(msgspec.msgpack.encode(specs[-1]))
        each = size // (index + 1)
        if count * each > _MOST_BYTES:
            text = (
                f"the specs of its {count:,} apps have about {each:,} bytes each; at most {_MOST_BYTES:,} in all are taken; "
                "put what they share into a file of the project folder"
            )
            raise SpecError(text, code="sweep.too_large")
    return Sweep(name, tuple(specs), digest)


def _check_first(base: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse placeholders of names that are not parameters.  Raises SpecError, with what else is wrong with the spec."""
    try:
        check_placeholders(base, known)
    except SpecError as error:
        raise SpecError(str(error), code=error.code, others=_errors_of(base)) from None


def _errors_of(base: Mapping[str, Any]) -> Sequence[SpecError]:
    """Return what is wrong with the spec of each app, in addition to its name and group."""
    try:
        check_spec({**base, "name": "x", "group": None}, every=True)
    except SpecError as error:
        return (error, *error.others)
    return ()


def app_name(name: str, index: int) -> str:
    """Return the name of one app of a sweep."""
    return f"{name}-{index:0{_DIGITS}}"


def digest_of(document: Mapping[str, Any]) -> str:
    """Return a digest that says whether two documents are the same.  Raises SpecError."""
    try:
        encoded = msgspec.json.encode(document, order="sorted")
    except (TypeError, ValueError, RecursionError):
        raise SpecError("the spec holds a value or a key that no spec has", code="sweep.malformed") from None
    return hashlib.blake2b(encoded, digest_size=6).hexdigest()


def _name_of(base: Mapping[str, Any]) -> str:
    name = base.get("name")
    try:
        return msgspec.convert({"name": name}, Group).name
    except msgspec.ValidationError:
        text = (
            f"name: a sweep's name has lower-case letters, digits and dashes, at most {LONGEST_NAME}, for the names of "
            f"its apps have a number after it; got {short(name)}"
        )
        raise SpecError(text, code="sweep.name.malformed") from None


def _parallel_of(document: Mapping[str, Any]) -> int:
    parallel = document.get("parallel", 0)
    if isinstance(parallel, bool) or not isinstance(parallel, int) or not 0 <= parallel <= MOST_APPS:
        text = f"parallel: expected how many apps may run at once, 0 for no limit, got {short(parallel)}"
        raise SpecError(text, code="sweep.parallel.out_of_range")
    return parallel


def _rows(document: Mapping[str, Any], most: int) -> tuple[Iterator[_Parameters], int]:
    """Return the parameters of each app, and how many there are."""
    array, sweep, mode = (document.get(field) for field in ("array", "sweep", "mode"))
    if array is not None and sweep is not None:
        raise SpecError("array: a spec has an array or a sweep, not both; leave one out", code="sweep.array.and_sweep")
    if mode not in (None, "grid", "list"):
        raise SpecError(f"mode: expected grid or list, got {short(mode)}", code="sweep.mode.not_a_choice")
    if array is not None:
        if isinstance(array, bool) or not isinstance(array, int) or array < 1:
            text = f"array: expected how many apps, at least 1, got {short(array)}"
            raise SpecError(text, code="sweep.array.out_of_range")
        return ({} for _ in range(_within(array, most))), array
    if isinstance(sweep, list) and sweep:
        count = _within(len(sweep), most)
        return iter([_settings(f"sweep[{index}]", row) for index, row in enumerate(sweep)]), count
    if not isinstance(sweep, dict) or not sweep or len(sweep) > _MOST_PARAMETERS:
        text = f"sweep: expected 1 to {_MOST_PARAMETERS} parameters with their values, such as {{lr: [0.1, 0.01]}}"
        raise SpecError(text, code="sweep.parameters.missing")
    names = [_parameter(name) for name in sweep]
    values = [_values(name, sweep[name]) for name in names]
    if mode != "list":
        for name, given in zip(names, values, strict=True):
            _check_repeated(name, given)
    if mode == "list":
        longest = max(map(len, values))
        for name, given in zip(names, values, strict=True):
            if len(given) != longest:
                text = f"sweep.{name}: {len(given)} values, and another parameter has {longest}; in mode list all have as many"
                raise SpecError(text, code="sweep.list.lengths_differ")
        count = _within(longest, most)
        combined: Iterator[tuple[Any, ...]] = zip(*values, strict=True)
    else:
        count = _within(prod(map(len, values)), most)
        combined = product(*values)
    return (_settings("sweep", dict(zip(names, row, strict=True))) for row in combined), count


def _within(count: int, most: int) -> int:
    if count > most:
        many = f"{count:,}" if count < 10**15 else "far too many"
        hint = "; take fewer values, or allow more with --most" if most < MOST_APPS else "; take fewer values"
        raise SpecError(
            f"the sweep has {many} apps, and one sweep may have at most {most:,}{hint}",
            code="sweep.too_many",
        )
    return count


def _parameter(name: object) -> str:
    try:
        return msgspec.convert(name, ParameterName)
    except msgspec.ValidationError:
        better = re.sub(r"[^A-Za-z0-9_]", "_", name)[:63] if isinstance(name, str) else ""
        hint = (
            f"; call it {better}, and write --{name} {{{better}}} in the command"
            if better.isidentifier() and len(str(name)) < 64
            else ""
        )
        text = (
            f"sweep: {short(name)} is no name of a parameter (letters, digits and _, at most 63, no digit first){hint}"
        )
        raise SpecError(text, code="sweep.parameter.malformed") from None


def _values(name: str, given: Any) -> Sequence[Any]:
    """Return the values of one parameter: a list, `{range: N}`, `{range: [first, end, step]}`, or a single value."""
    if isinstance(given, dict):
        return _range(name, given)
    values = given if isinstance(given, list) else [given]
    if not values:
        raise SpecError(f"sweep.{name}: has no value; give at least one", code="sweep.values.missing")
    return values


def _check_repeated(name: str, values: Sequence[Any]) -> None:
    """Refuse values that would make the same app several times.  Raises SpecError."""
    seen: set[str] = set()
    for value in () if isinstance(values, range) else values:
        text = as_text(value)
        if text in seen:
            hint = "leave one out, or add run: [1, 2] for several runs; [[1, 1]] is a list as one value"
            raise SpecError(f"sweep.{name}: {short(text)} is listed twice; {hint}", code="sweep.values.repeated")
        seen.add(text)


def _range(name: str, given: dict[Any, Any]) -> range:
    bounds = given.get("range")
    bounds = bounds if isinstance(bounds, list) else [bounds]
    whole = all(isinstance(bound, int) and not isinstance(bound, bool) and abs(bound) < 2**53 for bound in bounds)
    if set(given) != {"range"} or not whole or not 1 <= len(bounds) <= 3 or (len(bounds) == 3 and not bounds[2]):
        text = (
            f"sweep.{name}: expected values, or {{range: 5}} for 0 to 4, or {{range: [first, end, step]}} with whole numbers; "
            "list fractions one by one, and put a map as one value into a list"
        )
        raise SpecError(text, code="sweep.range.malformed")
    numbers = range(*bounds)
    if not numbers:
        raise SpecError(
            f"sweep.{name}: this range has no value; write {{range: [first, end]}}", code="sweep.values.missing"
        )
    return numbers


def _settings(path: str, row: Any) -> _Parameters:
    try:
        settings = msgspec.convert(row, dict[ParameterName, Setting])
    except msgspec.ValidationError:
        text = (
            f"{path}: each parameter has a name of letters, digits and _, and is a number up to 2^53, a text, true or false; "
            "write anything else in quotes"
        )
        raise SpecError(text, code="sweep.values.malformed") from None
    if len(settings) > _MOST_PARAMETERS:
        raise SpecError(f"{path}: at most {_MOST_PARAMETERS} parameters", code="sweep.parameters.too_many")
    return settings
