"""The command line: thin shells over the client, the master, the agents and replay.

What all commands share:

    main         the program, and the table of commands, each of which it imports on demand; completion
    command      the decorator that gives a command the options of a cluster, its client and its event loop
    connect      which cluster, and as whom: `--url`, `--credentials`, `--context`, what `dorm up` recorded, the default
    errors       errors in one line, with an exit code: 0 done, 1 failed or differs, 2 wrong usage
    output       `-o table|wide|json|yaml`, the same for every command;  tables: apps, sweeps and nodes
    terminal     untrusted text, made safe for a terminal
    source       which log a command reads: a cluster's or a file, up to which moment
    settings     settings as people write them;  changes: the event that changes them
    options      sizes, times, the address of metrics, archives;  fields: options that are fields of a spec
    signals      Ctrl-C, SIGTERM and SIGHUP as events; programs that run until they are stopped
    program_logs the program's own logs

Commands about apps:

    run          run, followed to its end by attached, which also prints what logs shows
    check        check
    apps         submit, ps, describe, logs, update, cancel, kill
    wait         wait, and whatever else waits for apps
    lifecycle    scale, edit, restart, retry, hold, release
    sweeps       sweep
    explain      explain, story;  history: history, compare;  plan: the next decision, without making it
    outputs      cp, checkpoints;  project: files, and folders that are shipped
    sessions     exec, shell, port-forward
    spec         spec, schema

Commands about clusters, the log and more:

    up, demo     a whole cluster on this machine;  master: master, masters;  agent: one node's
    serve        serve, dashboard, token
    trust        init, user, node, context, views
    nodes        nodes, drain, pause, resume;  policy: settings;  top: the cluster as it changes;  doctor
    deploy       deploy, backup;  webhooks
    events       events;  log: log, and what it says of seals
    replay       replay;  step_screen: the screen of `replay step`
    states       state, diff;  usage;  exports: export, incident
    whatif       whatif;  shadow: another policy next to the one that decides;  bench/: bench;  laboratory: commands of the distribution
                 `dorm-lab`, if it is installed
    verbs        words of other tools, and the commands that they mean here

A command is a function with a line in `main.COMMANDS`, and help with an example.
"""
