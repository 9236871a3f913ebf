"""Containers on a Docker engine.  The only code that imports aiodocker.

runtime   the runtime
config    pure: converts a typed spec to the engine's configuration, and back
engine    the calls;  images: pulls;  frames: the log stream;  user: whom containers run as
guard     a process that stops containers when the node's lease ends, agent or not
"""
