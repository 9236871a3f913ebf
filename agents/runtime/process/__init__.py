"""Plain processes, each with its own session and working directory.

runtime      the runtime supervisor   starts one container, outlives the agent, records how it ended, and enforces the
lease records      the records in a container's folder, and volumes below it;  logs: its output;  times: when that was
written execution    commands that people run next to a container's program;  keeper: starts one, and ends it with its
session attributes   what a program's process has, whatever the agent's has short_paths  how programs reach their
temporary folder and HOME, so that sockets fit below them

`supervisor`, `keeper`, `attributes` and `times` run outside the virtual environment, so they stand alone.
"""
