"""The messages between a plug-in's process and its owner: a length and MessagePack, one answer for each question."""

from __future__ import annotations

from typing import IO, Any, TypeVar

import msgspec

from dorm.policies.problem import PolicyFailure, Problem
from events.limits import Number, clipped

LENGTH = 8
"""Bytes of the length before each message, big-endian."""
LARGEST = 1 << 28
"""The largest answer in bytes; a larger one is nonsense, and must not exhaust the reader's memory."""


class Question(msgspec.Struct, frozen=True):
    """`problem` is None if the parameters are to be checked."""

    params: dict[str, Any]
    problem: Problem | None = None


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The first answer, unasked: the policy works."""

    version: Number
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


_CODES = ("policy.raised", "policy.nonsense", "policy.ended", "policy.not_installed")
"""The failures that a policy's process may report."""
_reply: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
_T = TypeVar("_T")


class TooLarge(Exception):
    """A message is larger than `LARGEST`."""


def reply_in(body: bytes) -> Reply:
    """Return the reply in a message.  Raises PolicyFailure."""
    try:
        return _reply.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(error) from None


def answer_in(reply: Reply, kind: type[_T]) -> _T:
    """Return the answer in a reply.  Raises PolicyFailure, also if the reply is one."""
    if isinstance(reply, Failed):
        text = " ".join(clipped(reply.text).split())
        raise PolicyFailure(text or "it says nothing", code=reply.code if reply.code in _CODES else "policy.raised")
    if not isinstance(reply, Answered):
        raise PolicyFailure("it answers with something else", code="policy.nonsense")
    try:
        return msgspec.msgpack.decode(reply.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> PolicyFailure:
    text = " ".join(str(error).split())  # It may quote the message.
    return PolicyFailure(clipped(f"its answer is malformed: {text}"), code="policy.nonsense")


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
