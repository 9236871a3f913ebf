"""A fuzz target: how inputs are made, and what has to hold for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.edits import Source


class Target(NamedTuple):
    """One target.  Inputs are bytes, so each can be saved and tried again, whatever it represents."""

    name: str
    share: int
    """Its share of all inputs, relative to other targets': expensive targets get few."""
    make: Callable[[Source], bytes]
    """An input, from decisions alone."""
    check: Callable[[bytes], None]
    """Raises on failure. Refusing an input is correct; any other exception is a failure."""


class Parts(msgspec.Struct, array_like=True):
    """An input of several pieces, such as records: its prefix, and each piece as a list of bytes."""

    begin: int
    parts: list[list[bytes]]


pack_parts = msgspec.msgpack.Encoder().encode
_decode_parts = msgspec.msgpack.Decoder(Parts).decode


def parts_of(data: bytes) -> Parts:
    """Return the pieces of an input; none if it is not such an input."""
    try:
        return _decode_parts(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Parts(0, [])


def one_line(error: BaseException, longest: int = 2000) -> None:
    """Check that a refusal is one printable line of bounded length."""
    text = str(error)
    assert text, f"{type(error).__name__} says nothing"
    assert len(text.splitlines()) == 1, f"more than one line: {text[:200]!r}"
    assert len(text) <= longest, f"{len(text)} characters: {text[:200]!r}"
