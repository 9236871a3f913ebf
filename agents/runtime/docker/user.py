"""The user that containers run as."""

from __future__ import annotations

import os
from typing import Final

from agents.runtime.interface import WrongUser

_NOBODY: Final = (65534, 65534)


def container_user(user: str | None) -> tuple[int, int]:
    """Parse `uid:gid` into (uid, gid); None for the agent's own user, or nobody if that is root.

    Raises WrongUser: a name would mean something else in every image, and only root can create (and later delete) files of
    another user.
    """
    if user is None:
        return (os.getuid(), os.getgid()) if os.getuid() != 0 else _NOBODY
    uid, _, gid = user.partition(":")
    if not uid.isdecimal() or not (gid or uid).isdecimal():
        raise WrongUser(f"the containers' user must be UID:GID in numbers, not {user!r}")
    chosen = int(uid), int(gid or uid)
    if os.getuid() != 0 and chosen != (os.getuid(), os.getgid()):
        raise WrongUser(
            f"an agent that is not root gives containers its own user, {os.getuid()}:{os.getgid()}, only",
            code="config.user.not_root",
        )
    return chosen
