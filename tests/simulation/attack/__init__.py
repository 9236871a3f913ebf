"""The faults of a history: drawn from its seed beforehand, and applied each at its time.

    faults       the schedule
    attack       applies it

Families of faults, with what has to hold beside them:

    crowds       tenants that take more than their part
    gates        holds, and apps that wait for others, at any moment
    misuse       operators' mistakes: settings that would destroy, a missing mount
    neighbors    a crash loop beside others, and a restart of the cluster
    operators    pauses, forgotten nodes, maintenance and retries at any moment
    steering     edits and restarts of apps at any moment
    replacing    another machine under a node's name, and a removed folder
    strangers    other writers to the log

Start with `faults`.
"""
