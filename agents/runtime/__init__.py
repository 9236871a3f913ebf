"""What runs containers.

    interface   the interface, and its errors; commands that people run inside, and which processes listen on a port
    secrets     users' secrets, as files of the node that containers get a copy of
    run_dirs    the folders of a node's containers
    cgroups     resource use, and how many processes may still start
    removing    removes what apps left, and nothing else; how much room apps' folders take
    long_work   work whose length apps decide, in threads of its own; starts that outlive their caller
    stopping    how containers are asked to stop: who gets the signal, and when
    workdir     shipped project folders: kept on the node's disk, and laid out for each container

    docker/     containers on a Docker engine
    process/    plain processes, each under a supervisor

Start with `interface`.  One conformance suite (`tests/agents/runtime`) holds both implementations to it.
"""
