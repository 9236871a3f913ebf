"""What `dorm sweep run` is given, as the document of a sweep: a file, or a command and its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dorm.cli.authoring.fields import Given, command_of
from dorm.cli.errors import WrongUsage
from dorm.cli.terminal import say
from events.spec.groups import MOST_APPS, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.local.commands import Typed
    from events.spec import SpecError

_FILES = (".yaml", ".yml", ".toml")
_LONGEST_MADE = 36
_RANGE = re.compile(r"(-?(?:0|[1-9][0-9]{0,14}))\.\.(-?(?:0|[1-9][0-9]{0,14}))")
_NEARLY_RANGE = re.compile(
    r"([A-Za-z_-]*)[-+]?[0-9._]*[0-9](?:[eE][-+]?[0-9]+)?\.\.\1[-+]?[0-9._]*[0-9](?:[eE][-+]?[0-9]+)?"
)
_OPENS = {"(": ")", "[": "]", "{": "}"}
_QUOTES = "'\""


def parameters(given: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of `--param`.  Raises WrongUsage."""
    found: dict[str, Any] = {}
    for one in given:
        name, sign, values = one.partition("=")
        if not sign or not name or not values:
            raise WrongUsage(f"--param: {one!r} has no values; write {name or 'lr'}=0.1,0.01 or {name or 'seed'}=0..9")
        if name in found:
            raise WrongUsage(f"--param: {name} is given twice; write all its values with commas between")
        found[name] = _values(name, values)
    return found


def _values(name: str, text: str) -> Any:
    """Return the values of one parameter as the document of a sweep has them.  Raises WrongUsage."""
    found: list[Any] = []
    parts = split(name, text)
    for part, quoted in parts:
        bounds = None if quoted else _RANGE.fullmatch(part)
        if bounds is not None:
            numbers = range(int(bounds[1]), int(bounds[2]) + 1)
            if len(parts) == 1:
                return {"range": [numbers.start, numbers.stop]}
            if not numbers or len(numbers) > MOST_APPS:
                why = (
                    "has no number: the first is more than the last"
                    if not numbers
                    else f"has more than {MOST_APPS:,} numbers"
                )
                raise WrongUsage(f"--param: {name}: the range {part} {why}", code="usage.param.range")
            found += numbers
        elif not quoted and _NEARLY_RANGE.fullmatch(part):
            text = (
                f"--param: {name}: {part} is no range, which has two whole numbers without zeros before them, such as 0..9; write the "
                f'values one by one, or "{part}" in quotes for this very text'
            )
            raise WrongUsage(text, code="usage.param.range")
        else:
            found.append(part if quoted else setting(part))
    return found


def split(name: str, text: str) -> list[tuple[str, bool]]:
    """Return the values between the commas of `--param`, and whether each is in quotes.

    Commas within brackets and quotes belong to a value.  Spaces around a value do not.  Quotes around a whole value are left out; in
    them, two quotes stand for one.  Raises WrongUsage for brackets and quotes without their ends, and for empty values.
    """
    found: list[tuple[str, bool]] = []
    at = 0
    while at <= len(text):
        at = _end_of_space(text, at)
        if text[at : at + 1] and text[at] in _QUOTES:
            value, at = _quoted(name, text, at)
            found.append((value, True))
            at = _end_of_space(text, at)
            if at < len(text) and text[at] != ",":
                raise _unclear(
                    name, f"{text[at:]!r} follows the end of a quote; write a comma between, or put all of it in quotes"
                )
        else:
            end = _end(name, text, at)
            value = text[at:end].strip()
            if not value:
                raise _unclear(name, f'a value is empty; write "" for an empty text, or leave out a comma of {text!r}')
            found.append((value, False))
            at = end
        at += 1
    for quote in _QUOTES:
        odd = [value for value, quoted in found if not quoted and value.count(quote) % 2]
        if len(odd) > 1:
            raise _unclear(
                name,
                f"it is unclear whether the commas between {odd[0]} and {odd[1]} divide values; put whole values in quotes",
            )
    return found


def _end_of_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _quoted(name: str, text: str, at: int) -> tuple[str, int]:
    """Return what is in quotes from a place on, and the place behind it."""
    quote = text[at]
    value, at = "", at + 1
    while True:
        end = text.find(quote, at)
        if end < 0:
            raise _unclear(name, f"the quote {quote} has no end in {text!r}; write two of them for one within quotes")
        value += text[at:end]
        if text[end + 1 : end + 2] != quote:
            return value, end + 1
        value, at = value + quote, end + 2


def _end(name: str, text: str, at: int) -> int:
    """Return where a value without quotes ends: at the next comma outside of brackets."""
    open_brackets: list[str] = []
    while at < len(text):
        sign = text[at]
        if sign in _OPENS:
            open_brackets.append(_OPENS[sign])
        elif sign in _OPENS.values():
            if not open_brackets or open_brackets.pop() != sign:
                raise _unclear(name, f"{sign} closes no bracket in {text!r}; put a value that holds one in quotes")
        elif open_brackets and sign in _QUOTES:
            at = _quoted(name, text, at)[1]
            continue
        elif sign == "," and not open_brackets:
            return at
        at += 1
    if open_brackets:
        raise _unclear(
            name, f"{open_brackets[-1]} is missing in {text!r}; put a value that holds one bracket in quotes"
        )
    return at


def _unclear(name: str, text: str) -> WrongUsage:
    return WrongUsage(f"--param: {name}: {text}", code="usage.param.malformed")


def document_of(
    words: Sequence[str], typed: dict[str, Any], given: dict[str, Any]
) -> tuple[dict[str, Any], Typed | None, Callable[[SpecError], SpecError]]:
    """Return the sweep of a file or of a command, for the latter also the typed words, and what adds the file and its lines to
    errors of the sweep.  Raises WrongUsage, SpecError."""
    from dorm.local.spec_files import including, read_spec
    from dorm.local.spec_files import name_of as named
    from events.spec import SpecError
    from events.spec.sweeps import FIELDS

    if len(words) == 1 and (words[0].endswith(_FILES) or words[0] == "-"):
        extra = next((name for name, value in typed.items() if value), None)
        if extra is not None:
            option = extra.replace("_", "-")
            raise WrongUsage(f"--{option} is for a command after --; write it into {words[0]}", code="usage.conflict")
        path = Path(words[0])
        found = read_spec(path)

        def placed(error: SpecError) -> SpecError:
            return error.at_lines(found.line).within(named(path))

        document = found.value if isinstance(found.value, dict) else {}
        try:
            document = including(document, path, given, lambda text: say(f"note: {words[0]}: {text}", error=True))
        except SpecError as error:
            raise placed(error) from None
        if "sweep" in given and "array" in document and "array" not in given:
            del document["array"]
        if not any(field in document for field in ("array", "sweep")):
            raise WrongUsage(
                f"{words[0]} has no `array` and no `sweep`; add one, name --param or --array, or use `dorm submit`",
                code="usage.nothing_to_do",
            )
        return document, None, placed
    if not any(field in given for field in ("array", "sweep")):
        raise WrongUsage("say what differs: --param NAME=VALUES or --array N", code="usage.nothing_to_do")
    made = _typed(words, typed)
    return {**spec_of(made), **{field: given[field] for field in FIELDS if field in given}}, made, lambda error: error


def _typed(words: Sequence[str], given: dict[str, Any]) -> Typed:
    return command_of(
        words,
        cpu=given["cpu"] or "1",
        memory=given["memory"],
        gpu=given["gpu"],
        workdir=given["workdir"],
        no_workdir=given["no_workdir"],
        folder=given["folder"],
        n_min=given["n_min"] or 1,
        n_max=given["n_max"],
        image=given["image"] or "",
        engine=given["engine"] or "plain",
        fields=Given(*(given[field] for field in Given._fields)).fields(),
        settings=tuple(given["set"] or ()),
        retries=given["retries"] or 0,
    )


def spec_of(typed: Typed, *, local: bool = True) -> dict[str, Any]:
    """Return the spec of a command.  `local`: whether all nodes are this machine.  Raises WrongUsage."""
    from dorm.local.commands import CommandRefused, document

    try:
        return document(typed, name_of(typed), local=local)
    except CommandRefused as error:
        raise WrongUsage.of(error) from None


def name_of(typed: Typed) -> str:
    """Return a name that is made from a command, with room for a number after it."""
    from dorm.local.commands import made_name

    return made_name(typed.words)[:_LONGEST_MADE].strip("-")


def base_of(words: Sequence[str]) -> Path:
    """Return the folder to which paths of a sweep are relative: the folder of its file, else the current one."""
    is_path = len(words) == 1 and words[0].endswith(_FILES)
    return Path(words[0]).absolute().parent if is_path else Path.cwd()
