"""What a program's process has, whatever the agent's service has: `python -I -S attributes.py DIR WORD…` runs a command so.

A process inherits more than its environment.  The agent's unit protects the agent when memory is short, may change its
priority, and sets limits and a mask for it.  An app with the same protection would outlive the machine's own services.  So
each program, session and checkpoint command of the process runtime begins with

    oom_score_adj   500, as in Docker: it is killed before the machine's services; supervisors and keepers keep the agent's
    nice, policy    0, SCHED_OTHER
    umask           022
    nofile          65,536, and as the most that it may set itself 524,288, as under systemd

What the agent is not allowed to give stays as it is: a process without privileges can't raise its limit or its priority.
Docker gives containers and their commands the container's own settings.

As a script, it becomes the command with working directory and environment of the container's program in DIR, or ends with 127.
"""

import contextlib
import os
import resource
import sys

OPEN_FILES = 65_536
MOST_OPEN_FILES = 524_288
MASK = 0o022
OOM_SCORE = 500
"""Same as in `agents.runtime.docker.container_config`, which a script outside the virtual environment can't import."""


def take() -> None:
    """Give this process what a program has.  Never raises."""
    os.umask(MASK)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE))
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, MOST_OPEN_FILES))
    except (OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, most), most))


def read_launch(folder: str) -> "tuple[str, dict[str, str]]":
    """Return the working directory and the environment of the container's program."""
    with open(os.path.join(folder, "launch"), "rb") as file:
        fields = [os.fsdecode(field) for field in file.read().split(b"\0")]
    count = int(fields[2])
    return fields[0], dict(field.split("=", 1) for field in fields[3 + count :] if field)


def main() -> None:
    folder, *command = sys.argv[1:]
    try:
        workdir, environment = read_launch(folder)
        take()
        os.chdir(workdir)
        os.execvpe(command[0], command, environment)
    except OSError:
        os._exit(127)


if __name__ == "__main__":
    main()
