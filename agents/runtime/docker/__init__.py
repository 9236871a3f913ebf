"""Containers on a Docker engine.

runtime   the runtime;  launcher: how it creates and starts a container
config    pure: converts a typed spec to the engine's configuration, and back;  profile: permissions of containers
checkpoints  the directory of an app's checkpoints, given to its tenant
engine    the calls, on aiodocker;  images: pulls;  frames: the log stream;  user: whom containers run as
logs      output with its times
firewall  keeps containers from the log's servers, engines on TCP and metadata addresses
disk      stops containers that write too much to the node's disk
execution  commands that people run beside a container's program;  keeper: ends one with its session
guard     a process that stops containers when the node's lease ends, agent or not
"""
