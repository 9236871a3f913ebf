"""The nodes' side: an agent applies the master's decisions to its node through a runtime, and reports what it sees.

    desired     pure: folds the master's rounds and the node's own facts into what should run here
    reconcile   pure: desired containers against seen ones gives actions
    contract    pure: what a container finds in its environment, and which command starts it
    agent       the shell: follows the log, drives the runtime, keeps the node's lease;  heartbeat: its sign of life
    reporter    facts about containers, made from what is seen;  outbox: those on their way to the log
    ledger      what must outlive a crash of the agent;  desired_file: what it has folded, for its next start
    progress    an app's progress file turned into facts;  logs: answers questions for container output
    config      what an agent is told about its node
    runtime     the interface to an engine, and its errors
    docker      containers on a Docker engine (docker_config: pure, from spec to engine; docker_engine: the calls;
                docker_images: pulls; docker_frames: logs; cgroups: use; docker_guard: kills when the lease is over)
    process     plain processes, each under a `supervisor` (process_records, process_logs: its files)
    run_dirs    the folders of a node's containers;  inflight: starts that outlive their caller
    ports       where a container is to listen;  lease: until when what runs may run on, agent or not

Agents are level-triggered: a restart, a crash, a lost connection or a repeated message all end in the same state.  They
follow only what the master wrote on the log and never import `dorm`.
"""
