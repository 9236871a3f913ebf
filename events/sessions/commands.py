"""A command as the log may show it: one line that a shell would read, cut, and without what looks like a secret.

No rule finds every secret, so a command should read its secrets from files or from its standard input, which the log never
has.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from events.limits import clipped
from events.spec.secrets import hide_secrets, names_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST_COMMAND: Final = 500
"""Characters of a command on the log."""
HIDDEN: Final = "[hidden]"
_MOST_WORDS, _LONGEST_WORD = 200, 4000
_ASSIGNS = re.compile(r"(?P<name>-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(?P<value>.+)", re.DOTALL)
_VALUE = r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s;&|'\"]+)"
_INSIDE = (
    re.compile(rf"(?P<before>(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?:=|:\s*)){_VALUE}"),
    re.compile(rf"(?P<before>(?<!\S)--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*)\s+){_VALUE}"),
)
"""Assignments, headers and options within one word, as `sh -c` has them."""


def shown(command: Sequence[str]) -> str:
    """Return the command as the log may show it."""
    words: list[str] = []
    hide_next = False
    for word in command[:_MOST_WORDS]:
        if hide_next and not word.startswith("-"):
            words.append(HIDDEN)
            hide_next = False
            continue
        words.append(_word(word[:_LONGEST_WORD]))
        hide_next = word.startswith("-") and "=" not in word and _secret(word)
    more = [f"... ({len(command) - _MOST_WORDS} more words)"] if len(command) > _MOST_WORDS else []
    quoted = (word if HIDDEN in word and " " not in word else shlex.quote(word) for word in words)
    return clipped(" ".join([*quoted, *more]), LONGEST_COMMAND)


def _word(word: str) -> str:
    found = _ASSIGNS.fullmatch(word)
    if found is not None and _secret(found["name"]):
        return f"{found['name']}={HIDDEN}"
    if any(sign in word for sign in " \t\n;"):
        for pattern in _INSIDE:
            word = pattern.sub(lambda one: one["before"] + HIDDEN if _secret(one["name"]) else one[0], word)
    return hide_secrets(word, HIDDEN)


def _secret(name: str) -> bool:
    return names_secret(name.lstrip("-").replace("-", "_"))
