"""What members send each other to build process groups.  These messages bypass the protocol."""

from __future__ import annotations

from dataclasses import dataclass

from dorm.elastic.protocol.messages import Message

__all__ = ["Built", "GroupMessage", "Hello", "Published"]


@dataclass
class GroupMessage(Message):
    """Root."""


@dataclass
class Hello(GroupMessage):
    """This process builds groups; `token` distinguishes it from an earlier process in the same slot."""

    token: str = ""


@dataclass
class Published(GroupMessage):
    """What a member publishes under a key of a group's rendezvous: `payload` holds its bytes."""

    group: str = ""
    key: str = ""


@dataclass
class Built(GroupMessage):
    """Whether this member has the group; a group that failed at one member is useless to all."""

    group: str = ""
    ok: bool = False
