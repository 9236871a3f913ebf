"""Who may do what on a cluster's NATS servers: roles, keys, certificates, and the servers' configuration.

The log is authoritative (`events.identities`), and the configuration is written from it.  Only shells use this
package: the core knows identities and public keys only.

    roles           what each role may publish and receive, as data
    configuration   accounts and permissions as a NATS server reads them;  quoting: texts in it
    admin           changing identities: the log first, then the servers
    joining         how a node joins: both sides; `introductions` has its tokens
    folder          a cluster's keys on its admin's machine
    certificates    the cluster's authority, and its servers' certificates
    contexts        clusters and credentials by names that a user chooses
    files           files that only their owner may read; the root of this package's errors

Start with `roles`.  Imports the client, the core and `events`.
"""
