"""This process's own fold of the log.

    follower    folds the log as it grows, and answers from the state; start here
    moments     states of the past: the nearest copy or snapshot, and a short fold from there
    lives       stories and explanations of the apps and nodes that were asked for last
    submitted   where on the log each app was submitted
    threads     threads that compute answers, with a bound on what waits for them
    recent      the log up to what is folded, its newest records from memory
    newest      the newest that apps reported beside the log
    lists/      pages of events, with the progress beside the log; apps of the past
    courses     what apps reported of their work, for curves
    picture     partitions over time, for drawings
    counted     what has happened since it began to follow, for metrics
    reports     what nodes last reported of their containers' use
    masters     who leads, by the lease, without making a request wait for it
    archived    a log in a file instead of a cluster;  tenant: a cluster as one tenant has it
    requester   a client for one request of one user, which reads from the follower

Imports the client, replay, metrics and the core.
"""
