"""Who may do what on a cluster's NATS servers: roles, keys, certificates, and the servers' configuration.

What counts stands on the log (`events.identities`), and the configuration is written from there.  Only shells use this
package: the core knows identities, and no keys but public ones.

    roles           what each role may publish and receive, as data
    configuration   accounts and permissions as a NATS server reads them
    admin           changing identities: the log first, then the servers
    joining         how a node joins: both sides; `introductions` has its tokens
    folder          a cluster's keys on its admin's machine
    certificates    the cluster's authority, and its servers' certificates
    contexts        clusters and credentials by a user's own names
    files           files that only their owner may read; the root of this package's errors

Start with `roles`.  Imports the client, the core and `events`.
"""
