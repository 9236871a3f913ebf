"""The nodes' side: an agent applies the master's decisions to its node, and reports its state.

    desired      pure: what should run here, from the node's part or the master's rounds, and from the node's own facts
    reconcile    pure: compares desired with seen containers, and returns actions; what running containers read
    delays       pure: what is tried again, what of that is on the log, and when a start is given up
    contract     pure: what a container finds in its environment and its folder, and which command starts it
    engines      pure: what each kind of app (torchrun, MPI, parameter servers, …) finds beyond that;  engine_launcher: the
                 program in a container that starts and ends a job over all of them
    agent        the shell: joins the node, keeps its lease, converges;  actions: what reconciliation asked for, carried out
    following    what the node reads: its part, or the rounds of the log; its folded state on disk
    fetching     brings shipped project folders to the node
    environment  packages and commands of apps, built once on a node;  environment_builder: the program that builds them
    outputs/     what apps leave in the folder that all nodes share
    progress     what apps report, in the progress file of each container
    reporter     facts about containers, made from what the engine lists
    outbox       facts on their way to the log, and progress on its way to the stream next to it
    status       heartbeats, what containers have used, how the process is
    answering    questions to this node
    sessions     commands, shells and forwarded connections of people in its containers
    config       the settings of a node, with its volumes
    machine      what the machine, its control groups and CPU sets allow apps, and where other nodes reach it
    offers       all that the node offers;  fitness: why it takes nothing new
    gpus         the node's GPUs by their UUIDs: which are there, and which are free
    identity     which machine this node is, whatever its name
    lease        until when containers may run, agent or not
    ledger       notes that must outlive a crash of the agent
    runtime/     the interface to an engine;  docker/ and process/ implement it

Start with `agent`, then `desired` and `reconcile`.  Agents are level-triggered: a restart, a crash, a lost connection
or a repeated message end in the same state.  They follow only what the master wrote, and import `events`, never
`dorm`.

`engine_launcher`, `environment_builder`, `lease` and `runtime/stopping` also run, or are imported, outside the agent's
own Python: in containers, and in the processes that outlive the agent.  They import little, and stand alone for that.
"""
