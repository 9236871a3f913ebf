"""Small helpers for generated Markdown."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold Markdown, but no line breaks."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "&#124;")


def code(text: str) -> str:
    """Inline code.  Renderers disagree on a bar between backquotes in a table, so such code becomes HTML."""
    return f"<code>{html.escape(text)}</code>" if "|" in text else f"`{text}`"


def prose(text: str) -> str:
    """Text from a docstring: nothing in it is markup except what stands between backquotes."""
    parts = text.split("`")
    return "".join(code(part) if index % 2 else _escaped(part) for index, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_\[\]])", r"\\\1", html.escape(text, quote=False))
