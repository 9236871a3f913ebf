"""How `dorm agent` gets its key: by the token of `dorm node intro` at its first start, from its data folder afterwards."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dorm.cli.errors import WrongUsage
from dorm.cli.terminal import say

if TYPE_CHECKING:
    from dorm.cli.connect import Target
    from dorm.security.introductions import Introduction

_FILE = "node.json"
_LONGEST = 16 * 1024


def read_introduction(token: str | None) -> Introduction | None:
    """Return the token's content, None without a token.  Raises WrongUsage, SecurityError."""
    text = os.environ.get("DORM_TOKEN", "")
    if token is not None:
        try:
            text = sys.stdin.read(_LONGEST) if token == "-" else Path(token).read_text()[:_LONGEST]
        except (OSError, UnicodeDecodeError):
            raise WrongUsage(f"--token: {token[:200]} can't be read", code="token.unreadable") from None
    if not text.strip():
        return None
    from dorm.security.introductions import read_token

    return read_token(text, time.time_ns())


async def node_target(given: Target, root: Path, node: str, introduction: Introduction | None) -> Target:
    """Return the cluster of an agent with its credentials: those that its command names, else those of its data
    folder, where it keeps them once it has joined by a token.  Raises WrongUsage, SecurityError, CredentialsError, and the log's errors."""
    from dorm.cli.connect import Target

    file = root / _FILE
    if introduction is not None and not file.exists():
        from dorm.security.admin import admitted
        from dorm.security.joining import join

        own = await join(introduction, file)
        await admitted(own)
        say(f"node {own.name} is enrolled in cluster {own.cluster}; its key is in {file}")
    found = given if given.named or not file.exists() else Target("", "", str(file))
    credentials = found.read()
    if credentials is None:
        return found
    if credentials.role != "node":
        raise WrongUsage(
            f"the credentials are those of {credentials}, and an agent needs a node's own: start it with the token that "
            "`dorm node intro` prints",
            code="node.other_credentials",
        )
    if credentials.name != node:
        raise WrongUsage(
            f"the credentials are those of {credentials}, and this node is {node}; name it --name {credentials.name}",
            code="node.other_credentials",
        )
    return Target(
        found.url or credentials.url,
        found.cluster or credentials.cluster,
        found.credentials,
        archives=given.archives,
    )
