"""Runs a command of a session in a container: `python -I -S keeper.py CONTROL CONTAINER DIR SESSION TERM WORD…`.

The agent starts it with the command's standard streams as its own, a terminal if TERM is not empty; DIR is the
container's folder, whose `launch` says where and with which environment its program was started.  CONTAINER is a pidfd
(pidfd_open(2)) of the container's supervisor, CONTROL a socket to the agent: the agent writes `NUMBER\\n` to send a signal to
the command's process group, and closes it to end the session, which its death does too.  The keeper writes `started\\n`, or
why the command could not be executed, then `CODE\\n`, or `CODE container\\n` if it killed the command because the container
had ended.

Whatever the command has started is killed with it: the keeper is the subreaper of all, and its parent, a guardian, does the
same should the keeper be killed, as with a container's supervisor.  It imports little, and runs outside the virtual
environment.
"""

import contextlib
import fcntl
import os
import select
import signal
import sys
import termios

if not __package__:  # run as a script: our package is next to it, after the standard library
    sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 4)[0])

from agents.runtime.process import attributes
from agents.runtime.process.supervisor import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, guard, prctl, reap, sweep

MARK = "DORM_SESSION"
"""Same as `agents.runtime.interface.MARK`, which a script outside the virtual environment can't import."""


def execute(command: "list[str]", workdir: str, environment: "dict[str, str]", terminal: bool, report: int) -> None:
    """The child's part: become the command, or report why not.  Never returns."""
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        attributes.take()
        os.chdir(workdir)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], command, environment)
    except OSError as failure:
        os.write(report, f"{command[0]}: {failure.strerror}".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def start(command: "list[str]", workdir: str, environment: "dict[str, str]", terminal: bool) -> "tuple[int, str]":
    """Return the command's pid, and why it could not be executed or ''."""
    reading, report = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        execute(command, workdir, environment, terminal, report)
    os.close(report)
    failure = b""
    while part := os.read(reading, 4096):
        failure += part
    os.close(reading)
    return pid, failure.decode("utf-8", "replace")


def keep(pid: int, control: int, container: int, ended: int) -> str:
    """Pass on signals until the command has ended; kill it when the agent or the container has.  `ended` is readable whenever
    a child may have ended.  Return the output for the agent."""
    poll = select.poll()
    for descriptor in (control, container, ended):
        poll.register(descriptor, select.POLLIN)
    why = ""
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == ended:
                os.read(ended, 4096)
                while (gone := reap(block=False)) is not None:
                    if gone[0] in (pid, 0):
                        return f"{gone[1]}{why}\n"
                continue
            received = b"" if descriptor == container else os.read(control, 256)
            if received:
                for number in received.split():
                    send(pid, int(number))
                continue
            why = " container" if descriptor == container else ""
            poll.unregister(descriptor)
            send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Signal the command's process group, which exists while the command is not reaped."""
    with contextlib.suppress(OSError):  # It changed its user, or is ending.
        os.killpg(pid, number)


def work(arguments: "list[str]") -> None:
    """The keeper's part."""
    control, container, folder, session, term, *command = arguments
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    workdir, environment = attributes.read_launch(folder)
    environment |= {MARK: session} | ({"TERM": term} if term else {})
    os.set_inheritable(int(control), False)
    os.set_inheritable(int(container), False)
    pid, failure = start(command, workdir, environment, bool(term))
    release_streams()
    report = failure.replace("\n", " ") if failure else "started"
    end = keep(pid, int(control), int(container), reading) if send_text(int(control), report + "\n") else ""
    sweep()
    send_text(int(control), end)


def send_text(control: int, text: str) -> bool:
    """Return whether the agent is there to read it."""
    try:
        os.write(control, text.encode("utf-8", "replace"))
    except OSError:
        return False
    return True


def release_streams() -> None:
    """Leave the command's streams to the command, so that their end is its end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def main() -> None:
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.fork()
    if keeper:
        release_streams()
        os.close(int(sys.argv[1]))
        guard(keeper)
    else:
        work(sys.argv[1:])


if __name__ == "__main__":
    main()
