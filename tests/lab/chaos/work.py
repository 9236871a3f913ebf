"""The work of a cluster under attack: apps that train, fail or crash, submitted continuously from outside; and probes, which
show when a master answers again.

A probe is a submission that can only be refused: the refusal is the answer, and it creates no app.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from compose.apps.worker.presence import VARIABLE
from compose.image import SAMPLES_REF
from dorm.client.errors import NoAnswer, Refused
from events import subjects
from events.codec import encode
from events.kinds import AppSubmitted
from events.log.records import LogError, LogRefused, NotSent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

    from dorm.client.client import Client

MARK_EVERY_S = 0.05
_ANSWER_S = 20.0
_PROBE_EVERY_S = 0.4
_PROBE_S = 5.0
_MOST_AT_ONCE = 64

Fate = Literal["completed", "failed"]


class Training(msgspec.Struct, frozen=True):
    """Everything that determines the final parameters of a training, on any workers and machines."""

    program: str
    steps: int


class Job(msgspec.Struct, frozen=True):
    """One app to submit, and its expected result."""

    spec: dict[str, Any]
    fate: Fate
    training: Training | None
    steady: bool = False
    """Whether it trains from start to end unless it is disturbed."""


Outcome = Literal["", "accepted", "stored", "unknown", "refused"]
"""What its submitter knows: `stored` (on the log but not answered yet), `unknown` (it may be on the log), `refused` (it is
not)."""


class Submission(msgspec.Struct):
    """One attempt, from its submitter's point of view."""

    id: str
    job: Job
    at: int
    """UTC ns."""
    outcome: Outcome = ""
    said: str = ""


class Probe(msgspec.Struct, frozen=True):
    """One probe."""

    id: str
    at: int
    """When it was sent (UTC ns)."""


TRAININGS = (Training("logistic", 70), Training("mlp", 40), Training("factorize", 60))
_STUMBLES = """\
if [ ! -e "$DORM_CHECKPOINT_DIR/stumbled" ]; then
    touch "$DORM_CHECKPOINT_DIR/stumbled"
    timeout -s KILL 4 "$@"
    exit 7
fi
exec "$@"
"""


def jobs(seed: int) -> Iterator[Job]:
    """Yield jobs without end, the same for the same seed: of ten apps, one crashes permanently and two crash once."""
    draws = random.Random(seed)
    number = 0
    while True:
        turn = ["crash", *["stumble"] * 2, *["train"] * 7]
        draws.shuffle(turn)
        for kind in turn:
            number += 1
            yield _job(f"{kind}-{number}", kind, draws.choice(TRAININGS), draws.randint(1, 2), draws.randint(2, 4))


def _job(name: str, kind: str, training: Training, n_min: int, n_max: int) -> Job:
    common: dict[str, Any] = {
        "name": name,
        "image": SAMPLES_REF,
        "demand": {"cpu": "500m", "memory": "256MiB"},
        "grace": "5s",
        "env": {VARIABLE: str(MARK_EVERY_S)},
    }
    if kind == "crash":
        retries = {"limit": 2, "backoff": "500ms"}
        return Job({**common, "command": ["sh", "-c", "exit 3"], "retries": retries}, "failed", None)
    command = ["python3", "-m", f"compose.apps.{training.program}", "--steps", str(training.steps)]
    command += ["--pace", "0.01", "--checkpoint-every", "10", "--peer-timeout", "6", "--connect-timeout", "30"]
    if kind == "stumble":
        command, n_min, n_max = ["sh", "-c", _STUMBLES, "sh", *command], 1, 1
    spec: dict[str, Any] = {
        "command": command,
        "resume": [*command, "--resume"],
        "n_min": n_min,
        "n_max": n_max,
        # Peers of a container that is hit fail with it, so faults use up retries, which must not end an app here.
        "retries": {"limit": 100, "backoff": "200ms", "longest": "2s"},
    }
    return Job({**common, **spec}, "completed", training, steady=kind == "train")


class Submitter:
    """Submits jobs at intervals, each in its own task, so that none waits for another during an outage."""

    def __init__(self, client: Client, work: Iterator[Job], gap_s: tuple[float, float], seed: int) -> None:
        self.submissions: list[Submission] = []
        self.enough = asyncio.Event()
        """Set by who wants no more."""
        self._client = client
        self._work = work
        self._gap_s = gap_s
        self._draws = random.Random(seed)

    async def run(self) -> None:
        """Submit until told to stop; return once every submission is answered, stored or failed."""
        async with asyncio.TaskGroup() as pending:
            while not self.enough.is_set():
                pending.create_task(self._submit(next(self._work)))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.enough.wait(), self._draws.uniform(*self._gap_s))

    async def _submit(self, job: Job) -> None:
        one = Submission(f"chaos.{job.spec['name']}", job, time.time_ns())
        self.submissions.append(one)
        try:
            await self._client.submit(job.spec, id=one.id, answer_timeout=_ANSWER_S)
        except NoAnswer as error:
            one.outcome, one.said = "stored", str(error)
        except (NotSent, LogRefused, Refused) as error:
            one.outcome, one.said = "refused", f"{type(error).__name__}: {error}"
        except LogError as error:
            one.outcome, one.said = "unknown", f"{type(error).__name__}: {error}"
        else:
            one.outcome = "accepted"


class Prober:
    """Sends a probe at intervals, regardless of earlier answers."""

    def __init__(self, client: Client) -> None:
        self.probes: list[Probe] = []
        self._client = client

    async def run(self) -> NoReturn:
        """Run until cancelled."""
        room = asyncio.Semaphore(_MOST_AT_ONCE)
        async with asyncio.TaskGroup() as pending:
            while True:
                if not room.locked():
                    pending.create_task(self._ask(room, len(self.probes)))
                await asyncio.sleep(_PROBE_EVERY_S)

    async def _ask(self, room: asyncio.Semaphore, number: int) -> None:
        probe = Probe(f"chaos.probe-{number}", time.time_ns())
        self.probes.append(probe)
        # Without a name, every master refuses it.
        body = encode(AppSubmitted(id=probe.id, at=probe.at, by="chaos", spec={}))
        subject = subjects.fact(self._client.cluster, "AppSubmitted", "chaos")
        async with room:
            with contextlib.suppress(LogError, TimeoutError):
                await self._client.log.append(subject, body, msg_id=probe.id, timeout=_PROBE_S)
