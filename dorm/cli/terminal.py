"""Untrusted text, made safe for a terminal.

Names, reasons, labels and messages on the log come from users, apps and nodes.  A terminal obeys control characters (move the
cursor, rewrite an earlier line, set the title, open a link, answer as if typed), and direction and zero-width characters make
text look like other text.  None of them reaches a terminal: such characters are shown as escapes, `\\x1b`, `\\u202e`.

All text for people goes through here: `SafeConsole` (`dorm.cli.output`) for what rich draws, `print_line` for plain lines.  `cell`
and `one_line` also escape line breaks, so a reason can't imitate lines of this program.  Documents (JSON, YAML) keep the same
data: `in_document` writes such characters as that format's own escapes.  A container's output (`dorm logs`) belongs to its
owner and passes unchanged, as with kubectl and docker.
"""

from __future__ import annotations

import shlex
import sys
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEPT = frozenset("\n\t")


def clean(text: str) -> str:
    """Escape everything except letters, signs, spaces, tabs and line breaks."""
    if text.isprintable():
        return text
    return "".join(sign if sign in _KEPT else _shown(sign) for sign in text)


def one_line(text: str) -> str:
    """Like `clean`, with line breaks and tabs escaped too."""
    return text if text.isprintable() else "".join(map(_shown, text))


def in_document(text: str) -> str:
    """Return JSON without characters that affect a terminal: they occur only in strings, where an escape is equivalent."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(sign if sign == "\n" else _json(sign) for sign in text)


def _harmless(sign: str) -> bool:
    return sign.isprintable() or unicodedata.category(sign) == "Zs"


def _shown(sign: str) -> str:
    if _harmless(sign):
        return sign
    code = ord(sign)
    known = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(sign)
    return known or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _json(sign: str) -> str:
    if _harmless(sign):
        return sign
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def in_shell(command: Iterable[str]) -> str:
    """Return a command as bash takes it, on one line: each word in quotes if it needs them."""
    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_ansi_c, word))}'" for word in command
    )


def _ansi_c(sign: str) -> str:
    if sign in "\\'":
        return f"\\{sign}"
    code = ord(sign)
    return sign if _harmless(sign) else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def print_line(text: str, *, error: bool = False, flush: bool = False) -> None:
    """Print a plain line to stdout, or stderr."""
    print(clean(text), file=sys.stderr if error else sys.stdout, flush=flush)
