"""The nodes' side: an agent applies the master's decisions to its node, and reports its state.

    desired      pure: folds rounds and the node's own facts into what should run here
    reconcile    pure: compares desired with seen containers, and returns actions
    contract     pure: what a container finds in its environment, and which command starts it
    agent        the shell: follows the log, drives the runtime, keeps the node's lease
    identity     which machine this node is, whatever its name
    checkpoint_folder  proof that this node shares the cluster's checkpoints
    reporter     facts about containers;  outbox: facts on their way to the log;  progress: an app's progress file
    heartbeat    the node's periodic report;  lease: until when containers may run, agent or not
    ledger       notes that must outlive a crash of the agent;  desired_file: its folded state
    config       the settings of a node;  ports: where containers listen;  logs: requests for container output

    runtime/     the interface to an engine;  docker/ and process/ implement it

Start with `agent`, then `desired` and `reconcile`.  Agents are level-triggered: a restart, a crash, a lost connection or a
repeated message end in the same state.  They follow only what the master wrote, and import `events`, never `dorm`.
"""
