"""Plain processes, each with its own session and working directory.

runtime      the runtime
supervisor   starts one container, outlives the agent, records how it ended, and enforces the lease
records      the records in a container's folder;  logs: its output;  times: when that was written
execution    commands that people run beside a container's program;  keeper: starts one, and ends it with its session
volumes      folders of the node below a container's own, as mounts or as links
attributes   what a program's process has, whatever the agent's has
short_paths  how programs reach their temporary folder and HOME, so that sockets fit below them
"""
