"""The faults of a history: drawn from its seed beforehand, each applied at its time.

    faults       the schedule
    attack       applies it

Families of faults, with their invariants:

    ailments     nodes on which apps fail, and the operator who trusts them (`tests.simulation.bad_nodes`)
    clocks       clocks that are set by hours, days or years, and back
    crowds       tenants that take more than their share
    gates        holds, and apps that wait for others, at any moment
    misuse       operators' mistakes: destructive settings, a missing mount
    neighbors    a crash loop next to other apps, and a restart of the cluster
    operators    pauses, forgotten nodes, maintenance and retries at any moment
    steering     edits and restarts of apps at any moment
    replacing    another machine under a node's name, and a removed folder
    strangers    other writers to the log

Start with `faults`.
"""
