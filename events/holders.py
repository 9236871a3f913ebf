"""Which machine holds a node's name.

The name alone does not identify the machine: an operator may give the successor of a cut-off machine the same name while the
first one still runs containers.  So each agent keeps a random identity in its node's folder and adds it to every event.  The
first identity that joins holds the name until it leaves cleanly or its lease ends.  The master's fold and every agent's fold
apply this one rule, so they agree on the holder.
"""

from __future__ import annotations


def may_hold(holder: str, identity: str, *, gone: bool) -> bool:
    """Return whether a join as `identity` takes effect.  `gone`: nothing of the holder can run any more.

    Agents before 0.5.1 have no identity (""): the first agent with one succeeds them, since it usually is the same node after
    an upgrade."""
    return gone or not holder or holder == identity
