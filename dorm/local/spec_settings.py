"""Fields of a spec that are typed on the command line: `KEY=VALUE` for any of them, and volumes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.local.spec_files import SPEC, parse
from dorm.local.spec_includes import included
from events.errors import DormError, code_of
from events.spec import SpecError
from events.spec.spec import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_MAPS = (*PARTS, "demand", "env", "labels", "secrets")
"""Fields whose parts may be set one by one."""


class SettingRefused(DormError):
    """A field of a spec can't be set as it was typed."""

    code = "usage.set.malformed"


def with_settings(document: dict[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    """Return the document with `KEY=VALUE` applied in order: values as in YAML, parts of maps as `env.LR=0.1`, and nothing
    after the sign for the default.  Raises SettingRefused."""
    changed = dict(document)
    for pair in pairs:
        key, sign, text = pair.partition("=")
        field, dot, part = key.partition(".")
        if not sign or not field or (dot and not part):
            raise SettingRefused(f"--set {pair!r}: write KEY=VALUE, such as weight=2 or env.LR=0.1")
        if dot and field not in _MAPS:
            raise SettingRefused(f"--set {pair!r}: {field} has no parts; write {field}=VALUE")
        place = SPEC.of(field).of(part) if dot else SPEC.of(field)
        try:
            # An entry of a map of texts is the text, whatever signs it holds.
            value = text if dot and place.plain else parse(text, place) if text else None
        except SpecError as error:
            raise SettingRefused(f"--set {pair!r}: {error}", code=code_of(error)) from None
        if not dot:
            _put(changed, field, value, keep=bool(text))
            continue
        inner = changed.get(field)
        changed[field] = dict(inner) if isinstance(inner, dict) else {}
        _put(changed[field], part, value, keep=bool(text))
        if not changed[field]:
            del changed[field]
    return changed


def _put(document: dict[str, Any], key: str, value: Any, *, keep: bool) -> None:
    if keep:
        document[key] = value
    else:
        document.pop(key, None)


def read_fields(
    folder: Path,
    note: Callable[[str], None],
    *,
    env: dict[str, str],
    env_files: Sequence[str] = (),
    requirements: str = "",
    volumes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the fields of a spec for the options of a command: its variables, files beside it that hold variables or
    packages, and volumes as `NAME[:PATH][:rw]`.  `note` receives notes for their author.  Raises SpecError."""
    given: dict[str, Any] = {"env": env}
    if env_files:
        given["env_file"] = list(env_files)
    if requirements:
        given["requirements_file"] = requirements
    if volumes:
        given["volumes"] = [_volume(one) for one in volumes]
    return {field: value for field, value in included(given, folder, note).items() if value}


def _volume(typed: str) -> dict[str, Any]:
    name, *rest = typed.split(":")
    writes = rest[-1:] in (["rw"], ["ro"]) and rest.pop() == "rw"
    volume: dict[str, Any] = {"name": name, **({"at": ":".join(rest)} if rest else {})}
    return {**volume, "read_only": False} if writes else volume
