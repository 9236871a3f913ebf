"""Enforces a node's lease over its Docker containers, agent or not: `python -I -S docker_guard.py ROOT URL LABEL…`.

Each node has one.  The process that extends the lease starts it if there is none, and it outlives that process.  About once a
second it reads the lease (`agents.lease`).  When the lease has expired, it kills all running containers, and keeps
doing so: through the engine, and also by the machine's own list of processes, since an engine may be down or hang.  In
ROOT it uses

    lease                   the lease; if it disappears, the value read last holds
    guard.lock              locked (flock(2)) as long as the guard lives
    guard.log               what it did
    APP-GEN-SLOT/starting   id of a container, noted by the agent before the engine starts it: so nothing can run
                            without a note, and all of its processes have that id in the name of their control group
    APP-GEN-SLOT/lease      written when a container is killed, so that its end does not count as the app's failure

It consists of two processes.  Each replaces its partner if that is killed, so killing one does not end the enforcement.
They hold their data in memory, so they continue if ROOT is removed.

It ends when no agent looks after the node and nothing runs or can start: either the engine confirms it, or there is no engine
and no such process.  Processes of an engine on another machine, or of containers out of this one's view, can only be killed
through that engine.  Like a supervisor it runs outside the virtual environment.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.parse

if not __package__:  # run as a script: our package is next to it, after the standard library
    sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 4)[0])

from agents import lease

TYPE_CHECKING = False  # typing itself would cost a third of the start
if TYPE_CHECKING:
    from typing import Any

LOCK = "guard.lock"
LOG = "guard.log"
STARTING = "starting"
KILLED = "lease"
LOOK_S = 0.5
FIRST_LOOK_S = 0.02
"""Seconds between looks before the first record was read.  It is written right after the guard has started, and if ROOT
went away before it was read, nothing would end the containers."""
ASK_S = 2.0
AGAIN_S = 2.0
"""Seconds between calls to an engine that has reported that nothing runs, or did not answer."""
START_S = 120.0
"""Seconds after which a request to start a container, whose agent has died, has been carried out or never will be."""
FIRST_RECORD_S = 10.0
ID = re.compile(r"[0-9a-f]{64}")
RUNS = ("running", "paused", "restarting")


class Silent(Exception):
    """The engine did not answer."""


class Down(Silent):
    """No process listens at the engine's address: an engine that is down starts nothing."""


class Guard:
    """The guard of one node: `labels` are those of its containers, `NAME=VALUE`."""

    def __init__(self, root: str, url: str, labels: "list[str]") -> None:
        self._root = root
        self._lease = os.path.join(root, lease.FILE)
        self._url = url
        self._labels = labels
        self._folder = os.stat(root)
        self._begun = time.monotonic()
        self._deadline: int | None = None
        self._notes: dict[str, str] = {}
        self._ask_at = 0.0
        self._ended: set[str] = set()
        self._logged: set[str] = set()
        self._starting: dict[str, float] = {}

    def run(self) -> None:
        """Run until nothing is left to guard, in the worker or, after it lost its parent, in the worker that it started."""
        while True:
            parent = os.getpid()
            worker = os.fork()
            if worker == 0 and self._work(parent):
                os._exit(0)
            if worker and self._wait(worker):
                return

    def _wait(self, worker: int) -> bool:
        """The parent's part.  Return False if its worker was killed, and has to be replaced."""
        while True:
            ended, status = os.waitpid(worker, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status) == 0
            self._remember()
            time.sleep(self._pause())

    def _remember(self) -> "int | None":
        """Remember, in case ROOT disappears, the deadline, which is returned, and whose processes to look for."""
        if self._there():
            self._deadline = lease.until(self._lease, self._deadline)
            with contextlib.suppress(OSError):
                self._notes = self._read_notes()
        return self._deadline

    def _pause(self) -> float:
        return FIRST_LOOK_S if self._deadline is None else LOOK_S

    def _there(self) -> bool:
        """Return whether ROOT is still the same folder: a recreated one is another node's, with another lease."""
        try:
            return os.path.samestat(os.stat(self._root), self._folder)
        except OSError:
            return False

    def _work(self, parent: int) -> bool:
        """The worker's part.  Return False if its parent was killed: then it becomes the next worker's parent."""
        before = (False, False)
        while True:
            if os.getppid() != parent:
                return False
            deadline = self._remember()
            if deadline is None and time.monotonic() - self._begun > FIRST_RECORD_S:
                return True
            over = deadline is not None and deadline <= lease.now_ns()
            alone = not (self._there() and lease.looked_after(self._lease))
            if (over, alone) != before:
                self._ask_at, before = 0.0, (over, alone)
            try:
                done = self._enforce() and alone if over else deadline is not None and alone and self._idle()
            except (
                OSError
            ) as failure:  # For example, no file can be opened now.  A guard that ended would guard nothing.
                self._log_once(f"trying again: {failure}")
                done = False
            if done:
                return True
            time.sleep(self._pause())

    def _enforce(self) -> bool:
        """Kill everything that runs; return True when certainly nothing does."""
        killed = self._kill_processes()
        if time.monotonic() < self._ask_at:
            return False
        try:
            running = self._running()
            for container in running:
                self._note(container["Id"], _folder_of(container))
                self._ask("POST", f"/containers/{container['Id']}/kill?signal=SIGKILL")
        except Down:
            self._ask_at = time.monotonic() + AGAIN_S
            return not killed
        except Silent:
            self._ask_at = time.monotonic() + AGAIN_S
            return False
        if running or killed:
            return False
        self._ask_at = time.monotonic() + AGAIN_S
        return not self._may_start()

    def _idle(self) -> bool:
        """Return whether nothing here could be ended by a lease."""
        if time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + AGAIN_S
        try:
            return not self._running() and not self._may_start()
        except Down:
            return not self._processes()
        except Silent:
            return False

    def _running(self) -> "list[dict[str, Any]]":
        """Return this node's running containers; also note which have ended, and which may yet start."""
        filters = urllib.parse.quote(json.dumps({"label": self._labels}))
        try:
            listed = json.loads(self._ask("GET", f"/containers/json?all=1&filters={filters}"))
            states = {container["Id"]: container["State"] for container in listed}
        except (ValueError, LookupError, TypeError) as failure:  # For example, the engine died while it answered.
            raise Silent(f"no list of containers: {failure}") from failure
        noted = self._noted_folders()
        self._ended = {name for name in noted if states.get(name, "exited") in ("exited", "dead")}
        now = time.monotonic()
        self._starting = {name: self._starting.get(name, now) for name in noted if states.get(name) == "created"}
        return [container for container in listed if container["State"] in RUNS]

    def _may_start(self) -> bool:
        """Return whether a requested start may still be under way."""
        return any(time.monotonic() - since < START_S for since in self._starting.values())

    def _noted_folders(self) -> "dict[str, str]":
        """Return the folders of containers that were to be started, by id; if ROOT is gone, the last ones read."""
        if self._there():
            self._notes = self._read_notes()
        return self._notes

    def _read_notes(self) -> "dict[str, str]":
        notes = {}
        for folder in os.listdir(self._root):
            with contextlib.suppress(OSError), open(os.path.join(self._root, folder, STARTING)) as note:
                name = note.read(65).strip()
                if ID.fullmatch(name):
                    notes[name] = folder
        return notes

    def _processes(self) -> "list[tuple[int, str, str]]":
        """Return the processes of this node's containers that this machine shows: pid, container, its folder."""
        names = {name: folder for name, folder in self._noted_folders().items() if name not in self._ended}
        processes = []
        for entry in os.listdir("/proc") if names else ():
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/cgroup") as file:
                        held = ID.search(file.read())
                except OSError:
                    continue  # it has gone
                if held is not None and held[0] in names:
                    processes.append((int(entry), held[0], names[held[0]]))
        return processes

    def _kill_processes(self) -> bool:
        """Kill the processes; return whether there were any."""
        processes = self._processes()
        for pid, name, folder in processes:
            self._note(name, folder)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except OSError as failure:
                self._log_once(f"process {pid} of container {name[:12]} is out of reach: {failure.strerror}")
        return bool(processes)

    def _note(self, name: str, folder: str) -> None:
        self._log_once(f"the lease is over: killing container {name[:12]} of {folder}")
        with contextlib.suppress(OSError), open(os.path.join(self._root, folder, KILLED), "w"):
            pass

    def _log_once(self, what: str) -> None:
        """Log a message once."""
        if what not in self._logged:
            self._logged.add(what)
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {what}\n")

    def _ask(self, method: str, path: str) -> bytes:
        """Return the body of the engine's answer, whatever its status.  HTTP/1.0: the connection ends after the answer."""
        deadline = time.monotonic() + ASK_S
        try:
            with _connected(self._url) as connection:
                connection.sendall(f"{method} {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
                answer = b""
                while part := connection.recv(65536):
                    answer += part
                    if time.monotonic() > deadline:
                        raise Silent("too slow")
        except (ConnectionRefusedError, FileNotFoundError) as failure:
            raise Down(str(failure)) from failure
        except OSError as failure:
            raise Silent(str(failure)) from failure
        head, _, body = answer.partition(b"\r\n\r\n")
        if method == "GET" and b" 200 " not in head.split(b"\r\n")[0]:
            raise Silent(head.decode("utf-8", "replace"))
        return body


def _connected(url: str) -> socket.socket:
    if url.startswith("unix://"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ASK_S)
        try:
            connection.connect(url[len("unix://") :])
        except BaseException:
            connection.close()
            raise
        return connection
    host, _, port = url.partition("://")[2].rstrip("/").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=ASK_S)


def _folder_of(container: "dict[str, Any]") -> str:
    labels = container["Labels"]
    return f"{labels.get('dorm.app')}-{labels.get('dorm.generation')}-{labels.get('dorm.slot')}"


def main() -> None:
    """Return in the caller's process as soon as there is a guard, this one or an earlier one."""
    root, url, *labels = sys.argv[1:]
    lock = os.open(os.path.join(root, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for attempt in range(30):  # who only looks whether there is a guard holds it for a moment
        if attempt:
            time.sleep(0.01)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
    else:
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(os.open(os.path.join(root, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    os.dup2(1, 2)
    os.chdir("/")
    Guard(root, url, labels).run()


if __name__ == "__main__":
    main()
