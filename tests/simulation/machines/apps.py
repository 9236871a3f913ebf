"""Apps as models: what the program in a container does, in virtual time.

An app works step by step.  Its first rank writes progress and checkpoints into the real checkpoint folder, so code that
deletes or ignores that folder loses real work.  The start command begins at step 0, the resume command at the saved step, so a
missing resume is lost work as well.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agents.contract import PORT_TAKEN
from agents.runtime.interface import PROGRESS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.machines.machine import Container

OnTerm = Literal["save", "leave", "ignore"]
START, RESUME, SAVE = ["work"], ["work", "--resume"], ["save"]
PLAN = "PLAN"
"""The variable through which a program gets its app's plan."""
OUT_OF_MEMORY = -1
"""Represents an end by the kernel."""
_PEER_LOST_S = 1.0
_LINGERS_S = 2.5
"""Longer than `_PEER_LOST_S`: its peers end first."""
LOST_PEER = b"ConnectionResetError: [Errno 104] Connection reset by peer\n"
"""What a fragile program prints at its end."""


class AppPlan(msgspec.Struct, frozen=True):
    """One app that a client will submit, and how its program behaves."""

    index: int
    name: str
    submit_at: float
    cpu: int
    """Milli-cores of each container."""
    n_min: int
    n_max: int
    steps: int
    step_s: float
    boot_s: float
    """From the start of the container to the first step."""
    checkpoint_every: int
    """Steps from one checkpoint to the next; 0 for checkpoints only on SIGTERM."""
    on_term: OnTerm
    term_s: float
    """From SIGTERM to its end."""
    term_code: int
    saves_by_command: bool
    fragile: bool
    """Whether a container ends with an error once a peer has died, like programs that exchange gradients."""
    trouble: float
    """The probability that a container fails by itself."""
    retries: int
    fails_after_s: float = 0.0
    """Time from each start to a failure; 0 for failures only by `trouble`."""
    pause_s: float = 0.0
    """Time from each failure to the next retry; 0 for pauses that begin at half a second and double up to four."""
    together: bool = False
    """Whether the first step needs all containers, like that of programs that exchange gradients."""
    live: bool = False
    """Whether it is resized while it runs (`tests.simulation.machines.live`)."""
    lingers: bool = False
    """Whether a container that fails loses its connections a while before it ends, like programs that still write a
    profile."""

    def document(self) -> dict[str, Any]:
        """Return the spec as a client sends it."""
        document: dict[str, Any] = {
            "name": self.name,
            "command": START,
            "resume": RESUME,
            "demand": {"cpu": self.cpu / 1000},
            "n_min": self.n_min,
            "n_max": self.n_max,
            "grace": 3,
            "env": {PLAN: str(self.index)},
            "retries": {
                "limit": self.retries,
                "backoff": f"{self.pause_s}s" if self.pause_s else "500ms",
                "longest": f"{self.pause_s}s" if self.pause_s else "4s",
            },
        }
        if self.live:
            document |= {"elastic": "live", "deadlines": {"live": "10s"}}
        if self.saves_by_command:
            document["checkpoint"] = SAVE
        return document


def draw_app(seed: int, index: int, capacities: Sequence[int]) -> AppPlan:
    """Draw the app of this index, independently of others; it fits into an empty cluster of nodes with this many
    milli-cores."""
    chance = random.Random(f"{seed}.app.{index}")
    cpu = min(chance.choice([500, 1000, 1000, 2000]), max(capacities))
    fits = sum(capacity // cpu for capacity in capacities)
    n_min = min(chance.choice([1, 1, 2, 3]), fits)
    on_term: OnTerm = chance.choice(["save", "save", "save", "leave", "ignore"])
    return AppPlan(
        index=index,
        name=f"app{index}",
        submit_at=round(chance.choice([0.5, 2.0, chance.uniform(0, 40)]), 3),
        cpu=cpu,
        n_min=n_min,
        n_max=n_min + chance.choice([0, 1, 2, 4]),
        steps=chance.choice([chance.randint(3, 20), chance.randint(20, 100)]),
        step_s=chance.choice([0.5, 1.0]),
        boot_s=round(chance.uniform(0.1, 2.0), 3),
        checkpoint_every=chance.choice([0, 3, 5, 10]),
        on_term=on_term,
        term_s=round(chance.uniform(0.0, 1.5), 3),
        term_code=chance.choice([0, 0, 143]),
        saves_by_command=chance.random() < 0.3,
        fragile=chance.random() < 0.5,
        trouble=chance.choice([0.0, 0.0, 0.0, 0.1, 0.3]),
        retries=chance.choice([1, 3, 6]),
        live=chance.random() < 0.3,
        lingers=random.Random(f"{seed}.end.{index}").random() < 0.4,
    )


STRANGERS = AppPlan(
    index=-1, name="stranger", submit_at=0, cpu=500, n_min=1, n_max=1, steps=2, step_s=0.5, boot_s=0.1, checkpoint_every=0,
    on_term="leave", term_s=0.1, term_code=0, saves_by_command=False, fragile=False, trouble=0, retries=3,
)  # fmt: skip
"""The plan of an app that no client of the history submitted: it does hardly anything."""


class Program:
    """The program in one container.  `later` is the machine's timer, which dies with its power."""

    def __init__(
        self, container: Container, plan: AppPlan, seed: int, later: Callable[..., Any], *, calm: bool
    ) -> None:
        self._container = container
        self._plan = plan
        self._later = later
        self._first = container.spec.env["DORM_RANK"] == "0"
        self._folder = Path(container.spec.env["DORM_CHECKPOINT_DIR"])
        self._hangs = False
        self._asked = False
        self.fails = False
        """Whether it is about to end by its own failure, and has lost its connections."""
        self.calm = calm
        """Whether it is to come to its end soon and without trouble of its own."""
        self._chance = random.Random(f"{seed}.fate.{':'.join(map(str, container.key))}")
        self.met: set[int] | None = None
        """Slots of the generation that are ready for the first step, if that needs all of them."""
        self.step = saved_step(self._folder) if list(container.spec.command) == RESUME else 0
        self.begun = self.step

    def start(self) -> None:
        """Begin to work."""
        trouble = self._chance.random() < self._plan.trouble
        kind, after_s = self._chance.choice(["crash", "memory", "hang"]), self._chance.uniform(0, 8)
        if trouble and not self.calm:
            if kind == "hang":
                self._hangs = True
            else:
                self._later(
                    after_s, self._fail, OUT_OF_MEMORY if kind == "memory" else self._chance.choice([1, 2, 134])
                )
        if self._plan.fails_after_s and not self.calm:
            self._later(self._plan.fails_after_s, self._fail, 1)
        if self._container.machine.fails_after_s and not self.calm:
            self._later(self._container.machine.fails_after_s, self._fail, 1)
            return  # Before its first step: an app that has worked there has found what it needs.
        self._later(self._plan.boot_s, self._bind)

    def _bind(self) -> None:
        if self._alive() and self._container.machine.strangers.intersection(self._container.ports):
            self._container.end(PORT_TAKEN)
        self._work()

    def be_calm(self) -> None:
        """From now on, work without failures, and not for long."""
        self.calm = True
        if self._hangs and not self.fails:
            self._hangs = False
            self._later(0.1, self._work)

    def _alive(self) -> bool:
        return self._container.state == "running"

    def _work(self) -> None:
        if not self._alive() or self._hangs:
            return
        if self.met is not None:
            self.met.add(self._container.key.slot)
            if len(self.met) < len(self._container.spec.env["DORM_PEERS"].split(",")):
                self._later(self._plan.step_s, self._work)
                return
        if self.step >= self._plan.steps or (self.calm and self.step >= self.begun + 3):
            self._container.finished = not self._asked
            self._container.end(0)
            return
        self.step += 1
        if self._first:
            self._say(step=self.step, loss=round(1 / self.step, 4))
            every = self._plan.checkpoint_every
            if every and self.step % every == 0:
                self.save()
        self._later(self._plan.step_s, self._work)

    def save(self) -> None:
        """Save a checkpoint: first the file that others read, then the report."""
        if not self._first:
            return
        if self._folder.is_dir():
            (self._folder / "step").write_text(str(self.step))
            if not self._container.machine.mounted:
                self._container.machine.witness.folder_gone(self._container.key)
            self._container.machine.witness.saved(self._container.key, self.step)
            self._say(checkpoint=self.step)

    def flood(self, lines: int, hole: int) -> None:
        """Save once and report it again and again, then leave a hole in the progress file."""
        if not self._first or not self._alive():
            return
        self.save()
        if not self._first:  # A live app without a membership has no member that saves.
            return
        said = b'{"step": %d}\n{"checkpoint": %d}\n' % (self.step, self.step)
        self._container.note_written()
        with (self._container.folder / PROGRESS_FILE).open("ab") as file:
            file.write((said if self._folder.is_dir() else b"\n") * lines)
            if hole:
                file.truncate(file.tell() + hole)
                file.write(b"\n")

    def _say(self, **words: Any) -> None:
        self._container.note_written()
        file = os.open(self._container.folder / PROGRESS_FILE, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, msgspec.json.encode(words) + b"\n")
        finally:
            os.close(file)

    @property
    def hangs(self) -> bool:
        """Whether it does nothing any more, and will not end by itself."""
        return self._hangs and not self.fails

    def _fail(self, code: int) -> None:
        if not self._alive() or self.calm:
            return
        if self._plan.lingers and code != OUT_OF_MEMORY:
            self._hangs = self.fails = True
            self._container.machine.witness.fails(self._container)
            self._later(_LINGERS_S, self._end_badly, code)
        else:
            self._end_badly(code)

    def _end_badly(self, code: int) -> None:
        if self._alive():
            self._container.end(137 if code == OUT_OF_MEMORY else code, out_of_memory=code == OUT_OF_MEMORY)

    def terminate(self) -> None:
        """SIGTERM."""
        if self._asked or self._plan.on_term == "ignore":
            return
        self._asked = True
        self._later(self._plan.term_s, self._leave)

    def _leave(self) -> None:
        if self._alive():
            if self._plan.on_term == "save" and not self._hangs:
                self.save()
            self._container.end(self._plan.term_code)

    def peer_died(self) -> None:
        """Another container of the generation ended badly."""
        if self._plan.fragile and self._alive() and not self._asked:
            self._later(_PEER_LOST_S, self._lose_peer)

    def _lose_peer(self) -> None:
        if self._alive() and not self.fails:
            self._container.said = LOST_PEER
            self._container.end(1)


def saved_step(folder: Path) -> int:
    """Return the saved step in a checkpoint folder, 0 for none."""
    try:
        return int((folder / "step").read_text())
    except FileNotFoundError:
        return 0
