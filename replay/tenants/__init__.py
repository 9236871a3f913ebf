"""The part of a cluster's log that one tenant may read: its own records in full, and as much of others' as explains its
share.

    names          pseudonyms of others' names
    hiding         events and states without what belongs to others
    showing        what a tenant sees instead of events about its own apps and users
    projection     a fold of the log that hides each record, and shows it to a tenant
    shared_views   one fold of a log that serves the views of all tenants
    log            a log as one tenant sees it, in a process that reads the log itself
    view_requests  answers users who ask for their views

A projected log has the same sequences, times and kinds as the log, so it folds: `ps`, `story` and `explain` work on
it as they do on the log.  For others' apps, it keeps demand, weight, bounds, placements and the codes of reasons.
It does not contain names, commands, environments, images, labels, progress, ports, messages and exit reasons in words. Data
that belongs to no tenant (nodes, policies, masters) stays.

Pure, except the last three.  Start with `projection`.
"""
