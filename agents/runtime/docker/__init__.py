"""Containers on a Docker engine.

runtime           the runtime;  launcher: how it creates and starts a container, as which user, with which checkpoints
container_config  pure: converts a typed spec to the engine's configuration, and back; permissions of containers
engine            the calls, on aiodocker: containers, images, output with its times
firewall          keeps containers from the log's servers, engines on TCP and metadata addresses
disk              stops containers that write too much to the node's disk
execution         commands that people run next to a container's program;  keeper: ends one with its session
guard             a process that stops containers when the node's lease ends, agent or not

`guard` and `keeper` run outside the virtual environment, so they stand alone.
"""
