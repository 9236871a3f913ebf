"""The nodes' side: an agent applies the master's decisions to its node, and reports its state.

    desired      pure: what should run here, from the node's part or the master's rounds, and from the node's own facts
    subscriptions  the subjects of the log that an agent reads
    reconcile    pure: compares desired with seen containers, and returns actions
    delays       pure: what is tried again, what of that is on the log, and when a start is given up
    repeats      pure: lines of its own log that repeat during a fault
    contract     pure: what a container finds in its environment and its folder, and which command starts it
    announcements  pure: what running containers read about their app's membership and batch size
    agent        the shell: joins the node, keeps its lease, converges;  actions: what reconciliation asked for, carried out
    fetching     brings shipped project folders to the node
    following/   what the node reads: its part, or the rounds of the log; its folded state on disk
    identity     which machine this node is, whatever its name
    checkpoint_folder  proof that this node shares the cluster's checkpoints
    outputs/     what apps leave in that folder
    lease        until when containers may run, agent or not
    ledger       notes that must outlive a crash of the agent
    config       the settings of a node;  ports: where containers listen
    capacity     what the machine, its control groups and CPU sets allow apps;  own_address: where other nodes reach it
    fitness      why it takes nothing new;  health_program: the operator's;  offers: all that the node offers
    gpus         the node's GPUs by their UUIDs: which are there, and which are free
    answering requests to this node

    progress/    what apps report, in the progress file of each container
    reporting/   what the node publishes: facts about containers, heartbeats, container output
    sessions/    commands, shells and forwarded connections of people in its containers
    engines/     pure: what each kind of app (torchrun, MPI, parameter servers, …) finds beyond that
    environment/ packages and commands of apps, built once on a node
    volumes/     folders of the node that apps may name
    runtime/     the interface to an engine;  docker/ and process/ implement it

Start with `agent`, then `desired` and `reconcile`.  Agents are level-triggered: a restart, a crash, a lost connection or a
repeated message end in the same state.  They follow only what the master wrote, and import `events`, never `dorm`.
"""
