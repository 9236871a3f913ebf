"""Parameters in commands and variables: `--lr {lr}` becomes `--lr 0.1`.

A name in braces is a placeholder.  `${NAME}` is left to the shell, and so is everything in braces that is not a name;
`{{name}}` stands for the text `{name}`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from events.spec.faults import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LISTS = ("command", "resume", "checkpoint")
_MAPS = ("env", "labels")


def check_placeholders(document: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse placeholders of names that are not parameters.  Raises SpecError."""
    for path, text in _texts(document):
        for found in _PLACEHOLDER.finditer(text):
            if found[2] and found[2] not in known:
                raise SpecError(
                    f"{path}: {{{found[2]}}} is no parameter; the parameters are {', '.join(known)}, and "
                    f"{{{{{found[2]}}}}} stands for the text itself",
                    code="sweep.placeholder.unknown",
                )


def filled(document: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the document with the values in place of their placeholders."""

    def fill(text: Any) -> Any:
        if not isinstance(text, str) or "{" not in text:
            return text
        return _PLACEHOLDER.sub(lambda found: f"{{{found[1]}}}" if found[1] else values.get(found[2], found[0]), text)

    made = dict(document)
    for field in _LISTS:
        if isinstance(made.get(field), list):
            made[field] = [fill(part) for part in made[field]]
    for field in _MAPS:
        if isinstance(made.get(field), dict):
            made[field] = {name: fill(value) for name, value in made[field].items()}
    return made


def _texts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for field in _LISTS:
        parts = document.get(field)
        if isinstance(parts, list):
            found += [(f"{field}[{index}]", part) for index, part in enumerate(parts) if isinstance(part, str)]
    for field in _MAPS:
        entries = document.get(field)
        if isinstance(entries, dict):
            found += [(field, value) for value in entries.values() if isinstance(value, str)]
    return found
