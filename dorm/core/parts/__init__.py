"""The part of the state that each node needs to know: its part (`events.parts`).

    deriving    a state and a node's name in, the node's part out
    concerned   which nodes' parts a record may have changed

A package of its own because audits and commands need only `deriving`, and masters both.

Agents follow their own part, so the cost of a decision does not grow with the number of nodes and apps.  Both modules
are pure.  The leading master stores the parts of the nodes that a record concerns (`dorm.master.parts`), and replay
derives them again (`replay.audit.parts_checks`).  Start with `deriving`.
"""
