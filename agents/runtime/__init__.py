"""What runs containers.

    interface   the interface, and its errors
    secrets     users' secrets, as files of the node that containers get a copy of
    run_dirs    the folders of a node's containers;  inflight: starts that outlive their caller;  cgroups: resource use
    process_limits  how many processes the agent may still start
    removing    removes what apps left, and nothing else
    long_work   work whose length apps decide, in threads of its own;  disk_use: how much room apps' folders take
    stopping    how containers are asked to stop: who gets the signal, and when
    execution   commands that people run inside;  listeners: which processes listen on a port

    workdir/    shipped project folders: kept on the node's disk, and laid out for each container
    docker/     containers on a Docker engine
    process/    plain processes, each under a supervisor

Start with `interface`.  One conformance suite (`tests/agents/runtime`) holds both implementations to it.
"""
