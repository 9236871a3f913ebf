"""Commands about identities: who may do what on a cluster.

    init       a cluster that knows its users: keys, the NATS server's configuration, streams
    users      `dorm user`: add, remove, list
    nodes      `dorm node`: introduce a node, remove one
    contexts   `dorm context`: clusters and credentials by name
    views      `dorm views`: serves plain users what they may read of the log
    joining    how `dorm agent` gets its key
    shared     the admin of a command

Start with `init`.  The work is in `dorm.security`.
"""
