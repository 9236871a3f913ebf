"""What a target of the fuzz is: how inputs are made, and what has to hold of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.edits import Source


class Target(NamedTuple):
    """Inputs are bytes, so that each can be saved and tried again, whatever it stands for."""

    name: str
    share: int
    """Of all inputs, against the other targets' shares: expensive targets get few."""
    make: Callable[[Source], bytes]
    """An input, from decisions alone."""
    check: Callable[[bytes], None]
    """Raises whatever is wrong.  What an input is refused with is right; everything else it raises is a failure."""


class Parts(msgspec.Struct, array_like=True):
    """An input of several pieces, such as records: what it begins with, and each as a list of bytes."""

    begin: int
    parts: list[list[bytes]]


pack_parts = msgspec.msgpack.Encoder().encode
_decode_parts = msgspec.msgpack.Decoder(Parts).decode


def parts_of(data: bytes) -> Parts:
    """Nothing if the input is none of these."""
    try:
        return _decode_parts(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Parts(0, [])


def one_line(error: BaseException, longest: int = 2000) -> None:
    """What every refusal has to be: one line that can be printed, of bounded length."""
    text = str(error)
    assert text, f"{type(error).__name__} says nothing"
    assert len(text.splitlines()) == 1, f"more than one line: {text[:200]!r}"
    assert len(text) <= longest, f"{len(text)} characters: {text[:200]!r}"
