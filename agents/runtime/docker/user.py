"""The user that containers run as."""

from __future__ import annotations

import os

from agents.runtime.interface import WrongUser


def container_user(user: str | None) -> tuple[int, int] | None:
    """Parse `uid:gid` into (uid, gid); None for the agent's own user, or if that is root, for one user per tenant.

    Raises WrongUser: a name would mean something else in every image, and only root can create (and later delete) files of
    another user.
    """
    if user is None:
        return (os.getuid(), os.getgid()) if os.getuid() != 0 else None
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
