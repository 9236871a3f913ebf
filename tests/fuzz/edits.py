"""Malformed input: a good input of a corpus, edited in a few places.

Trees (maps and lists, as events are) are edited where a byte would not reach: a value of another type, a key twice, a list
within itself.  Bytes and texts are spliced, as by disks, networks and broken programs.

All decisions are read from one byte string, in which smaller bytes are simpler decisions, so Hypothesis can shrink it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")
S = TypeVar("S", bytes, str)


class Source:
    """Decisions, read from bytes.  Beyond their end, every byte is zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._used = 0

    @property
    def decisions(self) -> bytes:
        """The bytes read so far."""
        return self._data[: self._used]

    def bytes(self, size: int) -> bytes:
        taken = self._data[self._used : self._used + size]
        self._used += size
        return taken.ljust(size, b"\0")

    def below(self, limit: int) -> int:
        return int.from_bytes(self.bytes(2 if limit <= 1 << 12 else 4)) % limit

    def pick(self, samples: Sequence[T]) -> T:
        return samples[self.below(len(samples))]

    def one_in(self, times: int) -> bool:
        """Return whether to do something rare."""
        return self.below(times) == times - 1


_SEVERAL = (1, 1, 1, 2, 2, 3, 5)
_VALUES: tuple[Any, ...] = (
    0, -0.0, 1, -1, 2**7, 2**31, -(2**31) - 1, 2**53 + 1, 2**60 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, 10**40, 10**400,
    math.nan, math.inf, -math.inf, 1e308, 5e-324, 0.1, None, True, False, [], {}, [[]], {"": {}}, {1: 2}, {None: 1},
    b"", b"\xff",
)  # fmt: skip
_TEXTS = (
    "", " ", "\n", "\x00", "a\x00b", "\ud800", "\u202e", "²", "٣", "💥", "../../etc/passwd", "x" * 65, "*", ">", ".", "dorm",
    "static", "nan", "1e999", "-1", "0x10", "10s", "1GiB", "NodeLost", "Round", "{}", "%s%n", "'", '"', "\\", "9" * 30, "&a",
    "*a", "!!python/object:os.system", "not ",
)  # fmt: skip
_DEEP = 5_000
"""Levels of nesting: more than the recursion limit, which is some 2,000 frames while Hypothesis runs."""
_PIECES: dict[type, tuple[Any, ...]] = {
    str: (*_TEXTS, "[" * 1_200),
    bytes: (
        b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xc6\x7f\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
        b"\xc9\x7f\xff\xff\xff\x01", b"\xd9\x02\xff\xfe", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\x91" * 40, b"\x91" * _DEEP,
        b"[" * 40, b'{"a":' * _DEEP, b"\0" * 9, b"\xff" * 9, b"\r\n", b"\n", b"{", b"}", b"[", b"]", b'"', b"\\u0000",
        b"\\ud800", b"1e999", b"-", b"NaN", b"&a", b"*a", b"\xef\xbb\xbf", b"\xd0RM\xb1", b"DORMEND2",
    ),
}  # fmt: skip
_LENGTHS = (1, 4, 8, 32, 200)


def strange(source: Source) -> Any:
    """Return a value that no reader expects."""
    match source.below(16):
        case 0:
            return int.from_bytes(source.bytes(source.below(10)), signed=True)
        case 1:
            return source.below(1 << 30) / (source.below(1 << 30) + 1)
        case 2:
            return "x" * (70_000 if source.one_in(10) else 70)  # a length of 16 bits says at most 65,535
        case kind:
            return copied(source.pick(_VALUES if kind < 11 else _TEXTS))  # a later edit may change it


def spliced(source: Source, data: S, others: Sequence[S] = ()) -> S:
    """Return a copy with a few pieces removed, inserted or repeated; `others` are good inputs to take pieces from."""
    for _ in range(source.pick(_SEVERAL)):
        at = source.below(len(data) + 1)
        drop, new = source.pick((0, 1, 1, 2, 8, 64)), data[:0]
        match source.below(8):
            case 0 | 1:
                new = source.pick(_PIECES[type(data)])
            case 2 | 3:
                drop, new = 1, _unit(source, data[at : at + 1])
            case 4 if isinstance(data, bytes):
                new = source.bytes(source.pick((1, 2, 8, 40)))
            case 5 if others:
                other = source.pick(others)
                begin = source.below(len(other) + 1)
                new = other[begin : begin + source.pick(_LENGTHS)]
            case 6:
                new = data[at : at + source.pick(_LENGTHS)] * source.pick((1, 2, 30))
            case 7 if source.one_in(2):
                drop = len(data)
        data = data[:at] + new + data[at + drop :]
    return data


def _unit(source: Source, old: S) -> S:
    """Return another byte, often with one bit flipped, or another character."""
    if isinstance(old, bytes):
        return bytes([ord(old) ^ 1 << source.below(8)]) if old and source.one_in(2) else source.bytes(1)
    return chr(source.below(source.pick((128, 0x110000))))


def changed(source: Source, tree: Any, *, alike: bool = False) -> Any:
    """Return a copy of a tree with a few places changed; if `alike`, kind and types stay, so that it is likely valid."""
    tree = copied(tree)
    for _ in range(source.pick(_SEVERAL)):
        places = list(_places(tree))
        if not places:
            return strange(source)
        holder, key = source.pick(places)
        other, there = source.pick(places)
        match source.below(3) if alike else source.below(9):
            case _ if alike and key in ("kind", "v"):
                pass
            case 0 | 1:
                holder[key] = _near(source, holder[key])
            case 2:  # the value of another place
                if not alike or type(other[there]) is type(holder[key]):
                    holder[key] = copied(other[there])
            case 3:
                del holder[key]
            case 4 if isinstance(holder, dict):  # a new key, or another name for this one
                holder[f"{strange(source)}"] = holder.pop(key) if source.one_in(2) else strange(source)
            case 4:
                holder.insert(key, strange(source))
            case _:
                holder[key] = strange(source)
    return tree


def _near(source: Source, value: Any) -> Any:
    """Return another value of the same kind, or almost."""
    match value:
        case bool() | None:
            return not value
        case int() | float() if abs(value) < 10**300:
            return source.pick((value + 1, value - 1, 0, 1, 2 * value, 20, -value, float(value), 2**31, value * 10**6))
        case str():
            return source.pick((value + "x", value[:-1], "node-1", "node-2", "app-abcdef", spliced(source, value)))
        case list():
            return source.pick((value + value[:1], value[1:], value[::-1], [], value[:1] * 50))
        case dict():
            return dict(reversed(value.items()))
        case _:
            return strange(source)


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every holder with each of its keys or indices."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(value)


_packer = msgpack.Packer(unicode_errors="surrogatepass", default=str)  # integers beyond 64 bits become text


def msgpack_of(tree: Any) -> bytes:
    packed: bytes = _packer.pack(tree)
    return packed


def json_of(tree: Any, *, ascii_only: bool = True) -> str:
    """Return JSON, with NaN, infinities and integers of any size as they are."""
    return json.dumps(tree, ensure_ascii=ascii_only, default=str, skipkeys=True)


def encoded(source: Source, tree: Any) -> bytes:
    """Return a tree as a client may send it: MessagePack, or JSON in some encoding; sometimes with each key twice."""
    pairs = list(tree.items()) if source.one_in(20) and isinstance(tree, dict) else []
    again = [(key, strange(source)) for key, _ in pairs]
    if source.below(5) < 3:
        return _packer.pack_map_pairs(pairs + again) if pairs else msgpack_of(tree)
    ascii_only = not source.one_in(4)
    text = json_of(tree, ascii_only=ascii_only)
    if pairs:
        text = f"{text[:-1]}, {json_of(dict(again), ascii_only=ascii_only)[1:]}"
    encoding = "utf-8" if ascii_only else source.pick(("utf-8", "utf-16", "utf-8-sig", "latin-1", "utf-32-le"))
    return text.encode(encoding, errors="surrogatepass" if encoding == "utf-8" else "replace")
