"""What a plug-in's process and its owner say to each other: MessagePack after its length, one answer for each question."""

from __future__ import annotations

from typing import IO, Any

import msgspec

from dorm.policies.problem import Problem

LENGTH = 8
"""Bytes of the length before each message, big-endian."""
LARGEST = 1 << 28
"""Bytes of an answer; a larger one is nonsense, and must not take the reader's memory."""


class Question(msgspec.Struct, frozen=True):
    """`problem` is None where the parameters are to be checked."""

    params: dict[str, Any]
    problem: Problem | None = None


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The first answer, unasked: the policy works."""

    version: int
    defaults: dict[str, Any]
    meaning: str
    """The first line of its docstring."""


class Answered(msgspec.Struct, frozen=True, tag=True):
    """`body` is the allocation, or the checked parameters, as MessagePack."""

    body: msgspec.Raw


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It has no answer; `code` as in `PolicyFailure`."""

    code: str
    text: str


Reply = Loaded | Answered | Failed


class TooLarge(Exception):
    """A message is larger than `LARGEST`."""


def send(stream: IO[bytes], message: msgspec.Struct) -> None:
    body = msgspec.msgpack.encode(message)
    stream.write(len(body).to_bytes(LENGTH, "big") + body)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Return the next message, None at the end.  Raises TooLarge."""
    head = stream.read(LENGTH)
    if len(head) < LENGTH:
        return None
    length = int.from_bytes(head, "big")
    if length > LARGEST:
        raise TooLarge
    body = stream.read(length)
    return body if len(body) == length else None
