"""From one good input to many bad ones.

Trees (maps and lists, as events are) are changed where a byte would not reach: a value of another type, a key twice, a list
within itself.  Bytes are changed as disks, wires and broken programs do.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

DEEP = 2_000
"""Levels of a deep nesting: more than Python's own recursion takes."""
LONG = 70_000
"""Characters of a long text: more than a length of 16 bits can say."""
_SEVERAL = (1, 1, 1, 2, 2, 3, 5)


class Twice(dict[Any, Any]):
    """A map whose encoding has its first key a second time, with another value."""


class Nested(NamedTuple):
    """A value within so many lists, kept flat so that the mutations do not break on it themselves."""

    value: Any
    levels: int


class Raw(bytes):
    """Bytes that stand in the encoding as they are."""


_NUMBERS: tuple[Any, ...] = (
    0, -0.0, 1, -1, 2**7, 2**8, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**60 + 1, 2**63 - 1, -(2**63), 2**64 - 1,
    2**64, 10**40, 10**400, math.nan, math.inf, -math.inf, 1e308, 5e-324, 0.1,
)  # fmt: skip
_TEXTS: tuple[Any, ...] = (
    "", " ", "\n", "\x00", "a\x00b", "\ud800", "\u202e", "²", "٣", "💥", "../../etc/passwd", "x" * 65, "*", ">", ".", "dorm",
    "static", "nan", "1e999", "-1", "0x10", "10s", "1GiB", "NodeLost", "Round", "{}", "%s%n", "'", '"', "\\",
)  # fmt: skip
_OTHERS: tuple[Any, ...] = (None, True, False, [], {}, b"", b"\xff", [[]], {"": {}}, {1: 2}, {None: 1}, Raw(b"\xc1"))


def strange(random: Random) -> Any:
    """A value that hardly anybody expects."""
    kind = random.randrange(20)
    if kind < 8:
        return random.choice(_NUMBERS)
    if kind < 13:
        return random.choice(_TEXTS)
    if kind < 17:
        return copied(random.choice(_OTHERS))  # Whoever gets it may change it.
    if kind == 17:
        return random.getrandbits(random.randrange(1, 66)) - random.getrandbits(random.randrange(1, 66))
    if kind == 18 and random.randrange(20) == 0:
        return "x" * LONG
    if kind == 19 and random.randrange(20) == 0:
        return Nested(random.choice(([], {"a": 1}, "x")), random.choice((20, 600, DEEP)))
    return random.random() * 10 ** random.randrange(-20, 20)


# --- trees --------------------------------------------------------------------------------------------------------------


def mutated_tree(random: Random, tree: Any) -> Any:
    """A copy with a few places changed."""
    tree = copied(tree)
    for _ in range(random.choice(_SEVERAL)):
        places = list(_places(tree))
        if not places:
            return strange(random)
        holder, key = random.choice(places)
        _TREE_CHANGES[random.randrange(len(_TREE_CHANGES))](random, holder, key, places)
    return tree


def nudged_tree(random: Random, tree: Any) -> Any:
    """A copy that differs little, so that it passes for what it was and gets deep."""
    tree = copied(tree)
    for _ in range(random.choice((1, 1, 1, 2))):
        places = list(_places(tree))
        if places:
            holder, key = random.choice(places)
            (_nudge_kindly if random.randrange(3) else _swap_alike)(random, holder, key, places)
    return tree


_HEADS = ("kind", "v")


def _nudge_kindly(random: Random, holder: Any, key: Any, _: Sequence[Any]) -> None:
    """Another value of the same kind."""
    value = holder[key]
    if key in _HEADS:
        return
    if isinstance(value, bool) or value is None:
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = random.choice(
            (value + 1, max(0, value - 1), 0, 1, 2 * value, random.randrange(1, 40), 2**31, 2**53)
        )
    elif isinstance(value, float):
        holder[key] = random.choice((0.0, 1.0, value * 2, value / 2, random.random() * 100))
    elif isinstance(value, str):
        holder[key] = random.choice((value + "x", value[:-1], "node-1", "node-2", "app-abcdef", ""))
    elif isinstance(value, list):
        holder[key] = random.choice((value + value[:1], value[1:], value[::-1], []))
    elif isinstance(value, dict):
        holder[key] = dict(random.sample(list(value.items()), len(value)))


def _swap_alike(random: Random, holder: Any, key: Any, places: Sequence[Any]) -> None:
    """The value of another place with the same type."""
    alike = [
        (other, there)
        for other, there in places
        if type(other.get(there) if isinstance(other, dict) else None) is type(holder[key])
    ]
    if alike and key not in _HEADS:
        other, there = random.choice(alike)
        if there not in _HEADS:
            holder[key] = copied(other[there])


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)((key, copied(item)) for key, item in value.items())
    return [copied(item) for item in value] if isinstance(value, list) else value


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every holder with each of its keys or indices; of something deep only the upper levels."""
    found: list[tuple[Any, Any]] = []
    level = [tree]
    for _ in range(12):
        below: list[Any] = []
        for holder in level:
            items = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key, value in items:
                found.append((holder, key))
                if isinstance(value, dict | list):
                    below.append(value)
        level = below
    return found if isinstance(tree, dict | list) else []


def _replace(random: Random, holder: Any, key: Any, _: Sequence[Any]) -> None:
    holder[key] = strange(random)


def _nudge(random: Random, holder: Any, key: Any, _: Sequence[Any]) -> None:
    """Something that is almost as good: a number near, a text with a character more or less."""
    value = holder[key]
    if isinstance(value, bool) or value is None:
        holder[key] = not value
    elif isinstance(value, int | float) and abs(value) < 10**300:
        holder[key] = random.choice(
            (value + 1, value - 1, -value, value * 2, value * 10**6, float(value), str(value), 0)
        )
    elif isinstance(value, str):
        at = random.randrange(len(value) + 1)
        holder[key] = (
            value[:at] + random.choice(("", "\n", "é", "x", "-", ".", "/")) + value[at + random.randrange(2) :]
        )
    elif isinstance(value, list):
        holder[key] = random.choice((value + value, value[1:], value[::-1], value[:1] * 50, dict(enumerate(value))))
    elif isinstance(value, dict):
        holder[key] = random.choice((list(map(list, value.items())), list(value), dict(reversed(value.items())), {}))


def _drop(_: Random, holder: Any, key: Any, __: Sequence[Any]) -> None:
    del holder[key]


def _add(random: Random, holder: Any, key: Any, _: Sequence[Any]) -> None:
    if isinstance(holder, dict):
        holder[random.choice((strange_key(random), f"{key}x", "v", "kind", "id"))] = strange(random)
    else:
        holder.insert(key, strange(random))


def strange_key(random: Random) -> Any:
    key = strange(random)
    return repr(key) if isinstance(key, dict | list | Nested) else key


def _swap(random: Random, holder: Any, key: Any, places: Sequence[Any]) -> None:
    """A value from another place, which is of a kind that does occur."""
    other, there = random.choice(places)
    try:
        holder[key] = copied(other[there])
    except (KeyError, IndexError):
        return


def _rename(random: Random, holder: Any, key: Any, _: Sequence[Any]) -> None:
    if isinstance(holder, dict):
        holder[strange_key(random)] = holder.pop(key)


def _double(_: Random, holder: Any, key: Any, __: Sequence[Any]) -> None:
    if isinstance(holder[key], dict):
        holder[key] = Twice(holder[key])
    elif isinstance(holder, list):
        holder.append(copied(holder[key]))


_TREE_CHANGES: tuple[Callable[[Random, Any, Any, Sequence[Any]], None], ...] = (
    _replace, _replace, _replace, _nudge, _nudge, _nudge, _drop, _add, _swap, _swap, _rename, _double,
)  # fmt: skip


# --- encodings ----------------------------------------------------------------------------------------------------------


def msgpack_of(value: Any) -> bytes:
    """MessagePack of any tree, valid or not: keys twice, integers of any size (as text), raw bytes."""
    out = bytearray()
    _pack(value, out)
    return bytes(out)


def _pack(value: Any, out: bytearray) -> None:
    match value:
        case Raw():
            out += value
        case None | bool():
            out.append({None: 0xC0, False: 0xC2, True: 0xC3}[value])
        case int():
            _pack_int(value, out)
        case float():
            out += b"\xcb" + struct.pack(">d", value)
        case str():
            text = value.encode(errors="surrogatepass")
            out += b"\xdb" + len(text).to_bytes(4, "big") + text
        case bytes():
            out += b"\xc6" + len(value).to_bytes(4, "big") + value
        case Nested(inner, levels):
            out += b"\x91" * levels
            _pack(inner, out)
        case list():
            out += b"\xdd" + len(value).to_bytes(4, "big")
            for item in value:
                _pack(item, out)
        case dict():
            pairs = _pairs(value)
            out += b"\xdf" + len(pairs).to_bytes(4, "big")
            for key, item in pairs:
                _pack(key, out)
                _pack(item, out)
        case _:
            raise AssertionError(f"no MessagePack for {type(value)}")


def _pack_int(value: int, out: bytearray) -> None:
    if 0 <= value < 128:
        out.append(value)
    elif 0 <= value < 2**64:
        out += b"\xcf" + value.to_bytes(8, "big")
    elif -(2**63) <= value < 0:
        out += b"\xd3" + value.to_bytes(8, "big", signed=True)
    else:
        _pack(str(value)[:300], out)


def _pairs(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    pairs = list(value.items())
    return [*pairs, (pairs[0][0], 0)] if isinstance(value, Twice) and pairs else pairs


def json_of(value: Any, *, ascii_only: bool = True) -> str:
    """JSON of any tree, with what is none of it as it is: NaN, integers of any size, keys twice."""
    match value:
        case Raw():
            return value.decode("latin-1")
        case bytes():
            return json.dumps(value.decode("latin-1"))
        case dict():
            return "{" + ",".join(f"{_json_key(key)}:{json_of(item)}" for key, item in _pairs(value)) + "}"
        case Nested(inner, levels):
            return "[" * levels + json_of(inner) + "]" * levels
        case list():
            return "[" + ",".join(map(json_of, value)) + "]"
        case int() if not isinstance(value, bool) and abs(value) >= 10**300:
            return "1" + "0" * 400
        case _:
            return json.dumps(value, ensure_ascii=ascii_only)


def _json_key(key: Any) -> str:
    return json.dumps(key) if isinstance(key, str) else json.dumps(repr(key))


def encoded(random: Random, tree: Any) -> bytes:
    """A tree as somebody may send it: mostly MessagePack, else JSON in some encoding."""
    kind = random.randrange(10)
    if kind < 6:
        return msgpack_of(tree)
    text = json_of(tree, ascii_only=kind < 9)
    if kind == 9:
        return text.encode(random.choice(("utf-8", "utf-16", "utf-8-sig", "latin-1", "utf-32-le")), errors="replace")
    return text.encode(errors="surrogatepass")


# --- bytes --------------------------------------------------------------------------------------------------------------

_BITS: tuple[bytes, ...] = (
    b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xc9\x7f\xff\xff\xff\x01", b"\xd9\x02\xff\xfe", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\x91" * 40, b"[" * 40, b'{"a":' * 40,
    b"\0" * 9, b"\xff" * 9, b"\r\n", b"\n", b"{", b"}", b"[", b"]", b'"', b"\\u0000", b"\\ud800", b"1e999", b"-", b"NaN",
    b"&a", b"*a", b"!!python/object:os.system", b"\xef\xbb\xbf", b"\xd0RM\xb1", b"DORMEND2",
)  # fmt: skip


def mutated_bytes(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """A copy with a few places changed; `others` are good inputs to take pieces from."""
    changed = bytearray(data)
    for _ in range(random.choice(_SEVERAL)):
        at = random.randrange(len(changed) + 1)
        match random.randrange(10):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 2 if at < len(changed):
                changed[at] = random.randrange(256)
            case 3:
                changed[at:at] = random.choice(_BITS)
            case 4:
                changed[at : at + random.choice((1, 1, 2, 8, 64))] = b""
            case 5:
                changed[at:at] = random.randbytes(random.choice((1, 2, 8, 40)))
            case 6:
                changed[at:at] = changed[at : at + random.choice((1, 4, 32))] * random.choice((1, 2, 30))
            case 7:
                del changed[at:]
            case 8 if others:
                other = random.choice(others)
                begin = random.randrange(len(other) + 1)
                changed[at : at + random.choice((0, 8, 64))] = other[begin : begin + random.choice((1, 8, 64))]
            case _:
                bits = random.choice(_BITS)
                changed[at : at + len(bits)] = bits
    return bytes(changed)


def mutated_text(random: Random, text: str, others: Sequence[str] = ()) -> str:
    """A copy with a few places changed, on characters."""
    for _ in range(random.choice(_SEVERAL)):
        at = random.randrange(len(text) + 1)
        match random.randrange(7):
            case 0:
                text = text[:at] + str(random.choice(_TEXTS)) + text[at:]
            case 1:
                text = text[:at] + text[at + random.choice((1, 1, 3, 20)) :]
            case 2:
                text = text[:at] + text[at : at + random.choice((1, 5, 20))] * random.choice((2, 3, 40)) + text[at:]
            case 3:
                text = text[:at] + str(random.choice(_NUMBERS[:15])) + text[at + random.randrange(3) :]
            case 4 if others:
                other = random.choice(others)
                begin = random.randrange(len(other) + 1)
                text = text[:at] + other[begin : begin + random.choice((1, 5, 20, 200))] + text[at:]
            case 5:
                text = (
                    text[:at] + chr(random.choice((random.randrange(128), random.randrange(0xD800)))) + text[at + 1 :]
                )
            case _:
                text = text[:at]
    return text
