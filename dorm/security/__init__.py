"""Who may do what on a cluster's NATS servers: roles, keys, certificates, and the servers' configuration.

The log is authoritative (`events.identities`), and the configuration is written from it.  Only shells use this
package: the core knows identities and public keys only.

    roles          what each role may publish and receive, as data
    joining        changing identities, the log first and then the servers; how a node joins, from both sides
    folder         a cluster's keys on its admin's machine, and its servers' accounts and permissions;  quoting: texts in them
    certificates   the cluster's authority, and its servers' certificates
    contexts       clusters and credentials by names that a user chooses
    private_files  files that only their owner may read; the root of this package's errors

Start with `roles`.  Imports the client, the core and `events`.
"""
