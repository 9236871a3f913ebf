"""The workers of one elastic job as processes on this machine, with announcements as an agent makes them.

Membership goes by files alone, as in a cluster: each worker has a folder with `members.json`, which is replaced as a whole,
and the file that takes its progress.  All of them share one more folder, for key and checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import dorm
import dorm_lab
from dorm.bench import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["SEARCHED", "Workers", "free_port"]

SEARCHED = os.pathsep.join(dict.fromkeys(str(Path(str(one.__file__)).parents[1]) for one in (dorm, dorm_lab)))
"""The folders of the project's packages, for `PYTHONPATH`."""
_LOOK_S = 0.02
_LISTENS_S = 120.0
"""Seconds that a newcomer may take to import what it needs."""


class Workers:
    """The workers of one job in a folder: `announce` starts those that are new.  Call `close` in any case."""

    def __init__(
        self, folder: Path, script: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.membership = 0
        self.members: list[int] = []
        self.founders: list[int] = []
        self.generation = 1
        self._script, self._arguments = script, arguments
        self._environment = dict(environment or {})
        self._ports: dict[int, int] = {}
        self._facts: dict[Path, tuple[int, list[dict[str, Any]]]] = {}
        """Number of bytes that were read of a progress file, and their facts, by file."""

    def announce(self, *slots: int, prepared: bool = False) -> None:
        """Announce a membership to all workers and start those that are new.  With `prepared` the new ones start and listen
        before the others hear of them."""
        self.membership += 1
        self.members = sorted(slots)
        if self.membership == 1:
            self.founders = self.members
        new = [slot for slot in slots if slot not in self.processes]
        document = {
            "generation": self.generation,
            "membership": self.membership,
            "deadline_s": 60.0,
            "members": [{"slot": s, "host": "127.0.0.1", "port": self.port(s)} for s in self.members],
            "founders": self.founders,
        }
        if prepared:
            self._announce(new, document)
            self._start_all(new)
            for slot in new:
                self._listening(slot)
            new = []
        self._announce(sorted({*slots, *self.processes}), document)
        self._start_all(new)

    def restart(self, *slots: int) -> None:
        """Start the next generation, once all workers of this one have ended."""
        for slot, process in list(self.processes.items()):
            process.wait()
            del self.processes[slot]
        self.generation += 1
        self.membership = 0
        self.announce(*slots)

    def _announce(self, slots: list[int], document: dict[str, Any]) -> None:
        for slot in slots:
            folder = self.of(slot)
            folder.mkdir(exist_ok=True)
            aside = folder / "members.new"
            aside.write_text(json.dumps(document))
            aside.replace(folder / "members.json")

    def _start_all(self, slots: list[int]) -> None:
        for slot in slots:
            self._start(slot)

    def _start(self, slot: int) -> None:
        folder = self.of(slot)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([SEARCHED, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "DORM_APP": "test",
            "DORM_GENERATION": str(self.generation),
            "DORM_SLOT": str(slot),
            "DORM_MEMBERS": str(folder / "members.json"),
            "DORM_PROGRESS": str(folder / "progress"),
            "DORM_CHECKPOINT_DIR": str(self.shared),
            **self._environment,
        }
        with (folder / "output").open("ab") as output:
            self.processes[slot] = self._run((self._script, *self._arguments), environment, output)

    def _run(self, command: tuple[str, ...], environment: dict[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", *command],  # -P: modules beside the script are no packages of its own.
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for the process that started them, which ends them.
        )

    def _listening(self, slot: int) -> None:
        """Wait until a newcomer can be reached: a silent connection has no effect there."""
        deadline = time.monotonic() + _LISTENS_S
        while time.monotonic() < deadline and self.processes[slot].poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port(slot)), timeout=1.0).close()
            except OSError:
                time.sleep(_LOOK_S)
            else:
                return
        raise self.failed(f"slot {slot} does not listen")

    def port(self, slot: int) -> int:
        if slot not in self._ports:
            self._ports[slot] = free_port()
        return self._ports[slot]

    def of(self, slot: int) -> Path:
        return self.folder / f"slot-{slot}"

    def facts(self) -> list[dict[str, Any]]:
        """Return all lines of all progress files, by slot.  Only new lines are read: a caller that waits for a change asks
        often, and shares the machine with the workers."""
        documents = []
        for path in sorted(self.folder.glob("slot-*/progress")):
            offset, lines = self._facts.get(path, (0, []))
            if path.stat().st_size > offset:
                slot = int(path.parent.name.partition("-")[2])
                with path.open("rb") as file:
                    file.seek(offset)
                    whole = file.read().rpartition(b"\n")[0] + b"\n"  # The last line may be incomplete.
                if whole != b"\n":
                    lines = lines + [{**json.loads(line), "slot": slot} for line in whole.splitlines()]
                    self._facts[path] = offset + len(whole), lines
            documents += lines
        return documents

    def changes(self) -> list[dict[str, Any]]:
        """Return the changes of members, by step."""
        return sorted((fact for fact in self.facts() if "cause" in fact), key=lambda fact: fact["step"])

    def epochs(self) -> dict[int, str]:
        """Return the ledger by epoch.  Raises BenchError if two members report different ones for the same epoch."""
        ledgers: dict[int, str] = {}
        for fact in self.facts():
            if "ledger" in fact and ledgers.setdefault(fact["epoch"], fact["ledger"]) != fact["ledger"]:
                raise self.failed(f"two members report different ledgers of epoch {fact['epoch']}")
        return ledgers

    def until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Wait until a condition on the facts holds.  Raises BenchError with the workers' output."""
        deadline = time.monotonic() + timeout
        while not condition():
            ended = all(process.poll() is not None for process in self.processes.values())
            if time.monotonic() > deadline or ended:
                if condition():
                    return
                raise self.failed("all workers ended too early" if ended else f"no change within {timeout:g} s")
            time.sleep(_LOOK_S)

    def failed(self, text: str) -> BenchError:
        """Return an error with the last line that a worker printed, and its whole output as a note."""
        last_lines = [line for slot in sorted(self.processes) for line in self.output(slot).splitlines()[-1:]]
        error = BenchError(f"{text}; the workers printed: {'; '.join(last_lines) or 'nothing'}", code="bench.workers")
        error.add_note(self.printed())
        return error

    def printed(self) -> str:
        """Return all that the workers printed and reported."""
        return "\n".join(f"slot {slot}: {self.output(slot)}" for slot in sorted(self.processes)) + f"\n{self.facts()}"

    def output(self, slot: int) -> str:
        path = self.of(slot) / "output"
        return path.read_text() if path.exists() else ""

    def wait(self, *slots: int, timeout: float = 90.0) -> list[int]:
        """Let the workers train to the end, and return the exit codes of these.  Raises BenchError."""
        (self.shared / "go").touch()
        deadline = time.monotonic() + timeout
        codes = []
        for slot in slots:
            try:
                codes.append(self.processes[slot].wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise self.failed(f"slot {slot} does not end") from None
        return codes

    def signal(self, slot: int, number: int) -> None:
        self.processes[slot].send_signal(number)

    def close(self) -> None:
        """End all workers at once."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
