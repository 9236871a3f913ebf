"""Who holds a node's name.

A name alone does not say which machine speaks: an operator who replaces a machine that was cut off gives its successor the
same name, while the first one may still run containers.  So an agent keeps a random identity in its node's folder and says
it with all that it says; the first identity that joins holds the name until it has left in good order or its lease has ended.
The master's fold and every agent's fold go by this one rule, so they agree about who holds it.
"""

from __future__ import annotations


def may_hold(holder: str, identity: str, *, gone: bool) -> bool:
    """Whether a join as `identity` takes effect.  `gone`: nothing of the holder can run any more.

    Agents before 0.5.1 have no identity (""): the first agent that has one succeeds them, because it usually is the same node
    after an upgrade."""
    return gone or not holder or holder == identity
