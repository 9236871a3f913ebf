"""Dorm shares one cluster among many distributed machine-learning applications.

Each app gets a *partition* of its own, a set of containers over several nodes, and all partitions are resized while the
apps run (Sun, Wen, Ta, Yan: "Towards Distributed Machine Learning in Shared Clusters: A Dynamically-Partitioned
Approach", arXiv 1704.06738).  This package holds the side that decides:

    policies/   pure: a problem in, an allocation out
    plugins/    policies of other distributions, in processes of their own
    core/       pure: state, fold, decisions, questions; no I/O, no clock, no randomness
    master/     the shell around the core: follows the log, folds it, publishes decisions
    snapshots   which snapshot of a cluster's log to start from
    live_fold   one fold of a log that follows it: under the API, metrics, webhooks, views, shadows and clients
    history     a cluster's whole log over a connection, with what rotation has archived
    rotation/   moves the log's past into archives
    client/     what a user's program calls: submit, cancel, watch, tail
    health/     whether the processes do their work, for load balancers and service managers
    workdir/    ships project folders to the cluster, and removes what no app needs
    metrics/    what a log and the processes look like to Prometheus
    webhooks/   events to people's own programs, over HTTP
    security/   who may do what on a cluster's NATS servers: roles, keys, certificates
    deploy/     a cluster on machines of its own: units, configuration, keys, backups
    doctor/     what is wrong with a cluster, and what to do
    local/      a whole cluster on this machine, built from its real parts
    api/        the HTTP API over a fold of its own
    web/        the dashboard: the page that `dorm serve` serves and an archive becomes
    bench/      measurements, all in one form
    cli/        the command line over all of them
    remote/     a client of that API for users' environments; a distribution of its own
    elastic/    for training code: resized while it runs; a distribution of its own, so it imports none of these

The vocabulary and the log are in `events`, the nodes' side in `agents`, time travel and audit in `replay`.
"""
