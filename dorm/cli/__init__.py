"""The command line: thin shells over the client, the master, the agents and replay.

    main         the program; imports each command on demand
    command      the decorator that gives a command the options of a cluster, its client and its event loop
    errors       errors in one line, with an exit code: 0 done, 1 failed or differs, 2 wrong usage
    output       `-o table|wide|json|yaml`, the same for every command
    connect      which cluster, and as whom: `--url`, `--credentials`, `--context`, what `dorm up` recorded, the default
    source       which log a command reads: a cluster's or a file
    metrics_address  the option `--metrics`
    signals      Ctrl-C, SIGTERM and SIGHUP as events;  service: programs that run until they are stopped
    program_logs the program's own logs
    terminal     untrusted text, made safe for a terminal;  tables: apps and nodes
    sizes        options that are sizes and times
    settings     settings as people write them;  changes: the event that changes them
    check        `dorm check`;  completion: `dorm completion`

    authoring/   spec
    project/     the folder that an app starts in: shipped by run and submit; files
    apps/        submit, ps, describe, explain, story, plan
    outputs/     cp, checkpoints
    containers/  exec, shell, port-forward
    lifecycle/   scale, edit, restart, retry
    cluster/     up, demo, master, masters, agent, policy
    sweeps/      sweep;  swept/: what commands about apps say of sweeps
    gates/       hold, release
    past/        history
    operating/   doctor, nodes, drain, pause, resume
    trust/       init, user, node, context
    deploy/      deploy, backup
    webhooks/    webhooks
    log/         events, log
    replay/      state at a moment, step, timeline, export and import
    export/      traces
    simulation/  simulate, whatif
    bench/       bench

A command is a function with a line in `main.COMMANDS`, and help with an example.
"""
