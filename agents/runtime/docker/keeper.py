"""Ends a command of a session in a Docker container: `python -I -S keeper.py CONTROL CONTAINER SESSION`.

An engine runs a command in a container until the command ends by itself: it has no call that kills it, and
the command continues when the requester has died. The agent therefore starts this process next to each such command.
CONTROL is a socket to the agent, which writes `NUMBER\\n` to send a signal, `over\\n` when the command has ended, and
closes it to end the session, which its death does too.  Then everything that is left of the session is killed, and
the keeper ends.

CONTAINER is the container's id, which the control group of each of its processes names; SESSION the value of DORM_SESSION in
the environment of the session's processes, which their children inherit.  A program that hides its environment ends with the
container at the latest.
"""

import contextlib
import os
import signal
import socket
import sys
import time

MARK = "DORM_SESSION"
"""Same as `agents.runtime.interface.MARK`, which a script outside the virtual environment can't import."""
AGAIN_S = 0.05
SURE_S = 1.0
"""Seconds without any such process after which there will be none: the engine may just be starting the command."""
LONGEST_S = 30.0


def processes(container: str, session: str) -> "dict[int, tuple[int, int]]":
    """Return the session's processes: by pid, the number of its process group and its start time."""
    wanted = f"{MARK}={session}".encode()
    members = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cgroup") as file:
                    if container not in file.read():
                        continue
                with open(f"/proc/{entry}/environ", "rb") as variables:
                    if wanted not in variables.read().split(b"\0"):
                        continue
                with open(f"/proc/{entry}/stat", "rb") as stat:
                    fields = stat.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has gone
            if fields[0] not in (b"Z", b"X"):
                members[int(entry)] = (int(fields[2]), int(fields[19]))
    return members


def send(container: str, session: str, number: int) -> None:
    """Signal the group of the session's first process, as a terminal does."""
    members = processes(container, session)
    if members:
        group = min(members.values(), key=lambda ids: ids[1])[0]
        for pid, (of, _) in members.items():
            if of == group:
                kill(pid, number)


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):  # It has gone.
        os.kill(pid, number)


def end(container: str, session: str, sure_s: float) -> None:
    """Kill all processes of the session, until none was found for `sure_s` seconds."""
    begun = last = time.monotonic()
    while (now := time.monotonic()) - begun < LONGEST_S:
        if members := processes(container, session):
            last = now
            for pid in members:
                kill(pid, signal.SIGKILL)
        elif now - last >= sure_s:
            return
        time.sleep(AGAIN_S)


def main() -> None:
    control, container, session = sys.argv[1:]
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    sure_s = SURE_S
    with socket.socket(fileno=int(control)) as connection:
        while request := _request(connection):
            for word in request.split():
                if word == b"over":
                    sure_s = 0.0
                else:
                    send(container, session, int(word))
    end(container, session, sure_s)


def _request(connection: socket.socket) -> bytes:
    try:
        return connection.recv(256)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
