"""What `dorm sweep run` is given, as the document of a sweep: a file, or a command and its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dorm.cli.authoring.fields import Given, command_of
from dorm.cli.errors import WrongUsage
from dorm.cli.terminal import say
from events.spec import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.local.commands import Typed

_FILES = (".yaml", ".yml", ".toml")
_LONGEST_MADE = 36
_RANGE = re.compile(r"(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})")


def parameters(given: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of `--param`.  Raises WrongUsage."""
    found: dict[str, Any] = {}
    for one in given:
        name, sign, values = one.partition("=")
        if not sign or not name:
            raise WrongUsage(f"--param: {one!r} has no values; write {name or 'lr'}=0.1,0.01 or {name or 'seed'}=0..9")
        if name in found:
            raise WrongUsage(f"--param: {name} is given twice; write all its values with commas between")
        bounds = _RANGE.fullmatch(values)
        if bounds is not None:
            found[name] = {"range": [int(bounds[1]), int(bounds[2]) + 1]}
        else:
            found[name] = [_scalar(value) for value in values.split(",")]
    return found


def _scalar(text: str) -> Any:
    """Return a number, true or false where a spec file has one in this place, else the text."""
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    return value if isinstance(value, bool | int | float) else text


def document_of(
    words: Sequence[str], typed: dict[str, Any], given: dict[str, Any]
) -> tuple[dict[str, Any], Typed | None]:
    """Return the sweep of a file or of a command; for the latter also the typed words.  Raises WrongUsage,
    SpecError."""
    from dorm.local.spec_files import load_document
    from dorm.local.spec_includes import included
    from events.spec.sweeps.expanding import FIELDS

    if len(words) == 1 and (words[0].endswith(_FILES) or words[0] == "-"):
        extra = next((name for name, value in typed.items() if value), None)
        if extra is not None:
            option = extra.replace("_", "-")
            raise WrongUsage(f"--{option} is for a command after --; write it into {words[0]}", code="usage.conflict")
        found = load_document(Path(words[0]))
        document = {**(found if isinstance(found, dict) else {}), **given}
        try:
            document = included(document, base_of(words), lambda text: say(f"note: {words[0]}: {text}", error=True))
        except SpecError as error:
            raise error.within(words[0]) from None
        if "sweep" in given and "array" in document and "array" not in given:
            del document["array"]
        if not any(field in document for field in ("array", "sweep")):
            raise WrongUsage(
                f"{words[0]} has no `array` and no `sweep`; add one, name --param or --array, or use `dorm submit`",
                code="usage.nothing_to_do",
            )
        return document, None
    if not any(field in given for field in ("array", "sweep")):
        raise WrongUsage("say what differs: --param NAME=VALUES or --array N", code="usage.nothing_to_do")
    made = _typed(words, typed)
    return {**spec_of(made), **{field: given[field] for field in FIELDS if field in given}}, made


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
