"""What a target of the fuzz is: inputs by number, and what has to hold of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random


class Target(Protocol):
    """Inputs are bytes, so that each can be saved, made smaller and tried again, whatever it stands for."""

    name: str
    share: int
    """Of all inputs, against the other targets' shares: dear targets get few."""

    def make(self, random: Random) -> bytes:
        """An input, by chance alone."""
        ...

    def check(self, data: bytes) -> None:
        """Raises whatever is wrong.  What an input is refused with is right; everything else it raises is a failure."""
        ...


class Simple:
    """A target of two functions."""

    def __init__(self, name: str, share: int, make: Callable[[Random], bytes], check: Callable[[bytes], None]) -> None:
        self.name, self.share, self.make, self.check = name, share, make, check


class Parts(msgspec.Struct, array_like=True):
    """An input of several pieces, such as records: what it begins with, and each as a list of bytes."""

    begin: int
    parts: list[list[bytes]]


pack_parts = msgspec.msgpack.Encoder().encode
_decode_parts = msgspec.msgpack.Decoder(Parts).decode


def parts_of(data: bytes) -> Parts:
    """Nothing where the input was made smaller into something that is none."""
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


def pick(random: Random, samples: Sequence[bytes]) -> bytes:
    return samples[random.randrange(len(samples))]
