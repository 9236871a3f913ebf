"""Errors of a spec in one line for its author: the field's path, what it expects, what it got.

msgspec's messages speak of JSON (`Expected `int` >= 0 - at `$.retries.limit``); these speak of the file (`retries.limit:
expected an integer of at least 0, got -1`).
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from events.errors import DormError
from events.quantities import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a map",
    "null": "nothing",
    "str | object": "text or a map",
    "int | float | str": "a quantity (a number, or text like 500m or 2GiB)",
}
_UNITS = {"array": "entries", "object": "entries", "str": "characters"}
_EXPECTED = re.compile(
    r"Expected `([^`]*)`(?: of length)?(?: (?:(>=|<=) )?([\d.e+-]+))?(?: matching regex .*)?(?:, got .*)?"
)
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


class Fault(NamedTuple):
    """What is wrong with a document: one line for its author, and the field and problem as words of a code."""

    text: str
    code: str
    """Such as `retries.limit.out_of_range`: fields of the struct (never keys that an author chose), then the problem."""

    def __str__(self) -> str:
        return self.text


class SpecError(DormError, ValueError):
    """A spec is refused; the message is one line that says what to change."""

    code = "spec.invalid"

    def __init__(self, message: str = "", *, code: str = "", others: Sequence[SpecError] = ()) -> None:
        super().__init__(message, code=code)
        self.others = tuple(others)
        """Other faults of the same document, as far as they are known."""

    def within(self, file: str) -> SpecError:
        """Return the same errors, with the file that they are about before the text."""
        return SpecError(f"{file}: {self}", code=self.code, others=[other.within(file) for other in self.others])

    def at_lines(self, line: Callable[[str], int | None]) -> SpecError:
        """Return the same errors in the order of the lines on which their fields stand, each with its line before the text.
        `line` finds the line of a path."""
        located = [(line(str(error).partition(": ")[0]), error) for error in (self, *self.others)]
        located.sort(key=lambda entry: entry[0] or 0)
        made = [SpecError(f"line {at}: {error}" if at else str(error), code=error.code) for at, error in located]
        return SpecError(str(made[0]), code=made[0].code, others=made[1:])

    @classmethod
    def of(cls, fault: Fault, document: str = "spec") -> SpecError:
        """Return the error of a fault; `document` is the first word of its code."""
        return cls(fault.text, code=f"{document}.{fault.code}")

    @classmethod
    def at(cls, field: str, error: DormError) -> SpecError:
        """Return the error of one field (`deadlines.start`) for what is wrong with its value."""
        return cls(f"{field}: {error}", code=f"spec.{field}.{error.problem}")


def unknown_fields(document: Mapping[Any, Any], known: Sequence[str], where: str = "") -> Iterator[Fault]:
    """Yield a fault for each key that is not a field.  `where` is the prefix of the path."""
    listed = False
    for key in document:
        if key not in known:
            close = difflib.get_close_matches(short(key)[:100].strip("'"), known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "" if listed else f"; the fields are {', '.join(known)}"
            listed = listed or not close
            plain = isinstance(key, str) and key.isidentifier() and len(key) <= 60
            yield Fault(f"{where}{key if plain else short(key)}: unknown field{hint}", f"{where}unknown_field")


def unknown_field(document: Mapping[Any, Any], known: Sequence[str], where: str = "") -> Fault | None:
    """Return the fault of the first key that is not a field, None if all are.  `where` is the prefix of the path."""
    return next(unknown_fields(document, known, where), None)


def shape_faults(
    document: dict[Any, Any],
    kind: type[msgspec.Struct],
    struct: Any,
    formats: Mapping[str, str],
    instead: Mapping[str, Any],
) -> Iterator[Fault]:
    """Yield a fault for each part of a document that `kind` has no place for; take it out of the document, which then fits.
    `struct` names the fields of codes; `instead` has values for fields that may not be missing."""
    for field, value in instead.items():
        if field not in document:
            yield Fault(f"{field}: missing", _coded(struct, field, "missing"))
            document[field] = value
    out: set[tuple[Any, ...]] = set()
    while True:
        try:
            msgspec.convert(document, kind)
        except msgspec.ValidationError as error:
            steps = _steps(error, document, struct)
            missing = _MISSING.match(str(error))
            if missing is None or (*steps, missing[1]) not in out:
                yield readable(error, document, struct, formats)
            out.add(tuple(steps))
            _take_out(document, steps, instead)
        else:
            return


def _steps(error: msgspec.ValidationError, document: Any, struct: Any) -> list[Any]:
    """Return the keys that lead to what an error is about."""
    message, _, place = str(error).partition(" - at ")
    path = place.removeprefix("`key` in ").strip("`").removeprefix("$").lstrip(".")
    steps = [name or int(index) for name, index in re.findall(r"([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]", path)]
    if (place.startswith("`key` in ") or path.endswith("[...]")) and not _MISSING.fullmatch(message):
        return [*steps, _entry(path.removesuffix("[...]"), document, struct)[1]]
    return steps


def _take_out(document: dict[Any, Any], steps: list[Any], instead: Mapping[str, Any]) -> None:
    """Remove an entry of a map, or the whole field: what a list is without an entry is not what its author meant."""
    field = steps[0]
    inner: Any = document
    for step in steps[:-1]:
        inner = inner.get(step) if isinstance(inner, dict) else None
    if len(steps) > 1 and isinstance(inner, dict) and len(inner) > 1 and steps[-1] in inner:
        document[field] = _without(document[field], steps[1:])
    elif field in instead:
        document[field] = instead[field]
    else:
        document.pop(field, None)


def _without(part: dict[Any, Any], steps: list[Any]) -> dict[Any, Any]:
    if len(steps) == 1:
        return {key: value for key, value in part.items() if key != steps[0]}
    return {**part, steps[0]: _without(part[steps[0]], steps[1:])}


def readable(error: msgspec.ValidationError, document: Any, struct: Any, formats: Mapping[str, str]) -> Fault:
    """Return the fault of msgspec's error about a document.  `formats` describes by path what a pattern or choice accepts."""
    message, _, place = str(error).partition(" - at ")
    in_key = place.startswith("`key` in ")
    path = place.removeprefix("`key` in ").strip("`").removeprefix("$").lstrip(".")
    if missing := _MISSING.fullmatch(message):
        return Fault(f"{_joined(path, missing[1])}: missing", _coded(struct, _joined(path, missing[1]), "missing"))
    if in_key or path.endswith("[...]"):
        path, culprit = _entry(path.removesuffix("[...]"), document, struct)
        if in_key:
            text = f"{path}: {short(culprit)} is not {formats.get(path, 'a name')}"
            return Fault(text, _coded(struct, path, "malformed"))
        container, path = _at(document, path), _joined(path, str(culprit))
        value = container.get(culprit)
    else:
        value = _at(document, path)
    any_entry = re.sub(r"\[\d+\]", "[]", path)
    wanted = formats.get(any_entry) if "regex" in message or "enum" in message else _wanted(message)
    code = _coded(struct, path, _problem(message))
    if wanted is None:
        return Fault(f"{path}: {message[:1].lower()}{message[1:]}"[:500], code)
    hint = "; write it in quotes" if wanted == "text" and isinstance(value, bool | int | float) else ""
    return Fault(f"{path}: expected {wanted}{_received(value)}"[:500] + hint, code)


def _problem(message: str) -> str:
    """Return the last word of the code for one of msgspec's messages."""
    if "regex" in message:
        return "malformed"
    if "enum" in message:
        return "not_a_choice"
    match = _EXPECTED.fullmatch(message)
    return "out_of_range" if match is not None and match[3] is not None else "wrong_type"


def _coded(struct: Any, path: str, problem: str) -> str:
    """Return the words of a code: the path's leading fields, without indexes and without keys of maps."""
    names: list[str] = []
    for name in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", path):
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        if name not in fields:
            break
        names.append(name)
        struct = _part(fields[name])
        if struct is None:
            break
    return ".".join([*names, problem])


def _part(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a field holds, even if it may be left out (`Utility | None`) or is annotated."""
    if isinstance(kind, type):
        return kind if issubclass(kind, msgspec.Struct) else None
    return next((part for arg in get_args(kind) if (part := _part(arg)) is not None), None)


def _wanted(message: str) -> str | None:
    match = _EXPECTED.fullmatch(message)
    if match is None:
        return None
    kind, sign, limit = match[1].removesuffix(" | null"), match[2], match[3]
    wanted = _TYPES.get(kind, kind)
    if limit is None:
        return wanted
    bound = {">=": "at least ", "<=": "at most ", None: ""}[sign]
    unit = f" {_UNITS[kind]}" if "of length" in message and kind in _UNITS else ""
    if unit == " entries" and limit == "1":
        unit = " entry"
    return f"{wanted} of {bound}{limit}{unit}"


def _received(value: Any) -> str:
    names = {dict: "a map", list: "a list", bytes: "bytes", type(None): "nothing"}
    if isinstance(value, dict | list) and not value:
        return f", got an empty {names[type(value)][2:]}" if type(value) in names else ""
    return f", got {names.get(type(value)) or short(value)}"


def _joined(path: str, name: str) -> str:
    name = name if re.fullmatch(r"[A-Za-z0-9_./-]{1,60}", name) else short(name)
    return f"{path}.{name}" if path else name


def _at(document: Any, path: str) -> Any:
    """Return the value at a path like `command[1]` or `retries.limit`; None if there is none."""
    for name, index in re.findall(r"([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]", path):
        try:
            document = document[name] if name else document[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return document


class _NoFields(msgspec.Struct):
    """Other values have none."""


def _entry(path: str, document: Any, struct: Any) -> tuple[str, Any]:
    """Find the bad entry of a map: msgspec does not name it, so each entry is tried alone."""
    wanted: Any = Any
    for name in path.split("."):
        wanted = next((field.type for field in msgspec.structs.fields(struct) if field.encode_name == name), Any)
        struct = _part(wanted) or _NoFields
    for key, value in (_at(document, path) or {}).items():
        try:
            msgspec.convert({key: value}, wanted)
        except msgspec.ValidationError:
            return path, key
    return path, ""
