"""The keys of `dorm top`: the bytes that a terminal sends, and their effect on a look.  Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dorm.cli.cluster.top_view import ORDERS, rows_of

if TYPE_CHECKING:
    from dorm.cli.cluster.top_view import Look
    from dorm.core.state import State

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)
_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\x08": "backspace",
}  # fmt: skip
_PAGE = 10
_LONGEST = 100


def keys_in(typed: bytes) -> list[str]:
    """Return the keys in a terminal's input: names of special ones, else the character; unknown ones are left out."""
    found = []
    for match in _SEQUENCE.finditer(typed.decode("utf-8", "ignore")):
        key = _NAMES.get(match[0], match[0])
        if len(match[0]) == 1 or match[0] in _NAMES:
            found.append(key)
    return found


def press(look: Look, key: str, state: State, now: int) -> bool:
    """Change the look.  Return False if the key ends the program."""
    if look.typing:
        _type(look, key)
        return True
    if key == "q":
        return False
    if key == "escape":
        if look.page == "cluster":
            look.words = ""
        look.page = "cluster"
    elif key == "?":
        look.page = "cluster" if look.page == "help" else "help"
    elif look.page == "cluster":
        _press_in_cluster(look, key, state, now)
    return True


def _type(look: Look, key: str) -> None:
    if key == "enter":
        look.typing = False
    elif key == "escape":
        look.typing, look.words = False, ""
    elif key == "backspace":
        look.words = look.words[:-1]
    elif len(key) == 1 and key.isprintable() and len(look.words) < _LONGEST:
        look.words += key


def _press_in_cluster(look: Look, key: str, state: State, now: int) -> None:
    moves = {
        "up": -1,
        "k": -1,
        "down": 1,
        "j": 1,
        "page up": -_PAGE,
        "page down": _PAGE,
        "home": -(10**9),
        "end": 10**9,
    }
    orders = list(ORDERS)
    match key:
        case "s" | "S":
            step = 1 if key == "s" else -1
            look.order = orders[(orders.index(look.order) + step) % len(orders)]
        case "r":
            look.reverse = not look.reverse
        case "/":
            look.typing = True
        case "e":
            look.ended = not look.ended
        case "n":
            look.nodes = not look.nodes
        case "enter":
            if look.chosen in state.apps:
                look.page = "app"
        case _ if key in moves:
            _move(look, moves[key], state, now)
        case _:
            pass


def _move(look: Look, by: int, state: State, now: int) -> None:
    rows = rows_of(state, look, now)
    if not rows:
        return
    at = next((place for place, row in enumerate(rows) if row.id == look.chosen), None)
    if at is None:
        look.chosen = rows[0 if by > 0 else -1].id
    else:
        look.chosen = rows[max(0, min(len(rows) - 1, at + by))].id
