"""Which machine holds a node's name.

The name alone does not identify the machine: an operator may give the successor of a cut-off machine the same name while the
first one still runs containers.  So each agent keeps a random identity in its node's folder and adds it to every event.  The
first identity that joins holds the name until it leaves cleanly or its lease ends.  The master's fold and every agent's fold
apply the rules here, so they agree on the holder, and on whether it has left.
"""

from __future__ import annotations


def may_hold(holder: str, identity: str, *, gone: bool) -> bool:
    """Return whether a join as `identity` takes effect.  `gone`: no container of the holder can run any more.

    Agents before 0.6.0 have no identity (""): the first agent with one succeeds them, since it usually is the same node after
    an upgrade."""
    return gone or not holder or holder == identity


def ends(joined: str, left: str) -> bool:
    """Return whether a `NodeLeft` of the process `left` ends the stay of a node that joined by the process `joined`.

    An agent that stops before its `NodeLeft` is acknowledged may be started again, and its successor may join first: servers
    keep the order of one connection's messages only.  What arrives late must not count the successor's containers as ended.
    Agents before 0.6.0 name no process ("")."""
    return not joined or not left or joined == left
