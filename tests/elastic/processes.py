"""Real members: processes on this machine, with announcements as an agent makes them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Workers:
    """The workers of one job in a folder: `announce` starts those that are new."""

    def __init__(self, folder: Path, script: str, *arguments: str) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir(parents=True)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.membership = 0
        self.members: list[int] = []
        self.founders: list[int] = []
        self._script, self._arguments = script, arguments
        self._ports: dict[int, int] = {}
        self.generation = 1

    def announce(self, *slots: int) -> None:
        self.membership += 1
        self.members = sorted(slots)
        if self.membership == 1:
            self.founders = self.members
        for slot in slots:
            self.port(slot)
        document = {
            "generation": self.generation,
            "membership": self.membership,
            "deadline_s": 60.0,
            "members": [{"slot": s, "host": "127.0.0.1", "port": self._ports[s]} for s in self.members],
            "founders": self.founders,
        }
        for slot in sorted({*slots, *self.processes}):
            folder = self.of(slot)
            folder.mkdir(exist_ok=True)
            aside = folder / "members.new"
            aside.write_text(json.dumps(document))
            aside.replace(folder / "members.json")
        for slot in slots:
            if slot not in self.processes:
                self._start(slot)

    def _start(self, slot: int) -> None:
        folder = self.of(slot)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "DORM_APP": "test",
            "DORM_GENERATION": str(self.generation),
            "DORM_SLOT": str(slot),
            "DORM_MEMBERS": str(folder / "members.json"),
            "DORM_PROGRESS": str(folder / "progress"),
            "DORM_CHECKPOINT_DIR": str(self.shared),
        }
        with (folder / "output").open("ab") as output:
            self.processes[slot] = subprocess.Popen(
                [sys.executable, self._script, *self._arguments],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def port(self, slot: int) -> int:
        if slot not in self._ports:
            self._ports[slot] = free_port()
        return self._ports[slot]

    def of(self, slot: int) -> Path:
        return self.folder / f"slot-{slot}"

    def facts(self) -> list[dict[str, Any]]:
        """All lines of all progress files, by slot."""
        lines = []
        for slot in sorted(self.processes):
            path = self.of(slot) / "progress"
            if path.exists():
                lines += [{**json.loads(line), "slot": slot} for line in path.read_text().splitlines()]
        return lines

    def changes(self) -> list[dict[str, Any]]:
        return sorted((fact for fact in self.facts() if "cause" in fact), key=lambda fact: fact["step"])

    def epochs(self) -> dict[int, str]:
        """The ledger by epoch; two members that report the same epoch must agree."""
        found: dict[int, str] = {}
        for fact in self.facts():
            if "ledger" in fact:
                assert found.setdefault(fact["epoch"], fact["ledger"]) == fact["ledger"]
        return found

    def until(self, condition: Any, timeout: float = 60.0) -> None:
        """Wait until a condition on the facts holds, or fail with what the workers printed."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline or all(p.poll() is not None for p in self.processes.values()):
                assert condition(), self.printed()
                return
            time.sleep(0.02)

    def printed(self) -> str:
        return "\n".join(f"slot {slot}: {self.output(slot)}" for slot in sorted(self.processes)) + f"\n{self.facts()}"

    def output(self, slot: int) -> str:
        path = self.of(slot) / "output"
        return path.read_text() if path.exists() else ""

    def wait(self, *slots: int, timeout: float = 90.0) -> list[int]:
        """Let the workers train to the end, and return the exit codes of these."""
        (self.shared / "go").touch()
        deadline = time.monotonic() + timeout
        codes = []
        for slot in slots:
            try:
                codes.append(self.processes[slot].wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"slot {slot} does not end\n{self.printed()}") from None
        return codes

    def signal(self, slot: int, number: int) -> None:
        self.processes[slot].send_signal(number)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
