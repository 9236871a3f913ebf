"""Rules about one app, shared by the fold and the decisions.

    admission   which submissions may run
    steering    which edits and restarts may be
    bounds      how many containers an app may have, given its past
    claims      reservations of apps that pause after a failure or were interrupted
    groups      which apps wait because enough of their group run
    failures    why a generation failed, and the consequences
    faults      whose fault that is: pairs that are avoided, and suspect nodes
    offers      which nodes offer what an app needs beyond resources
    gating/     what keeps an app from running, and for how long it may
    size_requests   what an app asked for itself
    planned     what a policy that plans ahead knows of an app
    resizable   whether it may be resized: apps without a checkpoint, and those that forbid it
    costs       what adjusting an app costs, as measured
    crossing    live changes that would wait for each other's room without end
    speeds      how fast an app has worked, with which partitions

Imports the state, `events`, and what policies are asked (`dorm.policies.problem`).
"""
