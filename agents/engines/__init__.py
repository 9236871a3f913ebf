"""The needs of an app's engine in a container: pure functions from spec and placement to environment, files and
command.

    interface    the input of an engine (`Place`) and its result (`Launch`);  registry: the engines by name
    plain        the command as it is;  elastic: the same, with the announcement of the generation's members
    torchrun     PyTorch: the variables of its launcher, or the launcher itself
    mpi          Open MPI: mpirun in the first container, its daemons in the others
    launcher     the program in a container that starts and ends a job over all of them;  launching: how engines use it
    roles        which containers are parameter servers;  ps: DMLC's variables;  tensorflow: TF_CONFIG

Start with `interface`.  A role, a rank or a hostfile follows from the placement in the log, so every agent computes the same
and the master knows nothing of engines.  Imports `events` alone.
"""
