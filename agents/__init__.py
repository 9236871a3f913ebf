"""The nodes' side: an agent applies the master's decisions to its node, and reports its state.

    desired           pure: what should run here, from the node's part and its own facts
    reconcile         pure: compares desired with seen containers, and returns actions; what running containers read
    delays            pure: what is tried again, what of that is on the log, and when a start is given up
    contract          pure: what a container finds in its environment and its folder, and which command starts it
    engines           pure: what each kind of app (torchrun, MPI, …) finds beyond that;  engine_launcher: the
                      program in a container that starts and ends a job over all of them
    agent             the shell: joins the node, keeps its lease, converges;  actions: those of reconciliation
    following         what the node reads: its part, and its own facts on the log; its desired state on disk
    fetching          brings shipped project folders to the node
    environment       packages and commands of apps, built once on a node;  environment_builder: the program that builds them
    outputs/          what apps leave in the folder that all nodes share
    progress          what apps report, in the progress file of each container
    reporter          facts about containers, made from what the engine lists
    outbox            facts on their way to the log, and progress on its way to the stream next to it
    node_status       heartbeats, what containers have used, how the process is
    answering         questions to this node
    sessions          commands, shells and forwarded connections of people in its containers
    config            the settings of a node, with its volumes
    machine           what the machine, its control groups and CPU sets allow apps, and where other nodes reach it
    offers            all that the node offers;  fitness: why it takes nothing new
    gpus              the node's GPUs by their UUIDs: which are there, and which are free
    machine_identity  which machine this node is, whatever its name
    node_lease        until when containers may run, agent or not
    ledger            notes that must outlive a crash of the agent
    runtime/          the interface to an engine;  docker/ and process/ implement it

Start with `agent`, then `desired` and `reconcile`.  Agents are level-triggered: a restart, a crash, a lost connection
or a repeated message end in the same state.  They follow only what the master wrote, and import `events`, never
`dorm`.

`engine_launcher`, `environment_builder`, `node_lease` and `runtime/stopping` also run, or are imported, outside the agent's
own Python: in containers, and in the processes that outlive the agent.  They import little, and stand alone for that.

Parts. Everything that a node needs to know is one document, a pure function of the state at one record
(`dorm.core.parts`). The leading master stores the last part of each node beside the log, signed; rounds never wait for
it, and an audit derives all parts again. After each `NodeJoined`, an agent waits for a part of a later record before it
starts or stops anything.

The node's lease is enforced by the runtime: supervisors (processes) or a guard process (Docker) kill everything when it
ends, even without the agent. Only stored heartbeats extend it, counted from when they were sent, and an expired lease
is never extended (`agents.node_lease`). So the master can count the containers of a node that was silent for long enough as
gone.

Stopping. A container is a tree of processes. The programs that handle the signal are asked, whatever started them;
their helpers are left to them, and shell scripts are held until they have saved. A container has ended when its last
process has. The supervisor does this for plain processes, and the agent for containers of an engine on its machine
(`agents.runtime.stopping`).

Identity and folders. The first machine that joins holds a node's name until it has left or its lease has ended
(`events.identities`); facts of another machine change nothing. The shared folder of checkpoints has a marker, so a missing
mount is noticed (`agents.outputs.folders`, `dorm.core.shared_folder`). Progress files, outputs and everything else
that apps write is untrusted, and read in bounded pieces. Secrets are files of a node; neither the log nor the agent's
own files contain them.

Engines are pure functions (`agents.engines`): a container's place in its generation in; variables, files and command
out. Every agent computes the same roles and ranks, and the master knows nothing about engines. Shipped folders are a
hash on the log, and blobs in a stream beside it, separated by tenant (`dorm.workdir`). An agent announces the features
that it supports (`events.spec.abilities`); to policies, these are labels.

Runtimes. Two runtimes implement one interface and pass one conformance suite. `docker/` isolates containers: no
capabilities, a read-only image, a user for each tenant, limits that are checked after creation. `process/` supervises
one child for each container; it limits nothing, and so serves one tenant.
"""
