"""A flood of hostile submissions, and what it costs the others: elections, answers, processors.

Server, masters and the flood are processes of their own, and share the processors that the bench may use (`--cores 1` puts all
of them on one).  The server does not sync its writes, so the flood comes as fast as it can be sent.  Every submission of the
flood is refused: it has unknown fields, contradicts itself, names an app that does not exist, is larger than a spec may be,
repeats an id, or is no event at all.  Meanwhile an honest user submits one app after the other.

    elections      after the first: a master that lost its lease to the flood, although it ran all along
    flood          from the first to the last record of the flood on the log
    answered       until the masters have answered the last of it
    answer         what the honest user waits for an answer, by log time
    renewal        the longest time without a renewal of the lease, as seen by this process

    python -m dorm.bench.flood URL CLUSTER COUNT     the flood alone
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL
from typing import TYPE_CHECKING, Any

from dorm.bench import BenchError
from dorm.bench.api.processes import CLUSTER, log_server, master
from dorm.bench.report import Report, figure, percentile, this_machine
from dorm.client.client import Client
from dorm.client.errors import NoAnswer
from dorm.core.evolve import evolve
from dorm.core.state import State
from dorm.local.home import home
from events import subjects
from events.codec import encode
from events.kinds import AppSubmitted, MasterElected, Round
from events.nats.connection import Connection
from events.nats.leadership import lease_subject
from events.nats.link import Link, as_log_errors
from events.spec import LARGEST_SPEC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from dorm.bench.api.processes import Running
    from dorm.bench.report import Figure, Progress
    from events.log.records import Record

_USER = "flood"
_HONEST = "honest"
_WINDOW = 400
"""Submissions for each acknowledgement.  The server drops what it has not stored beyond 10,000."""
_HUGE_OF = 50
"""One in so many submissions is huge: together, they are most of the bytes."""
_PAUSE_S = 0.5
_LED_S = 60.0
_LONGEST_S = 1200.0
_ANSWER_S = 300.0


async def bench_flood(*, submissions: int, masters: int, cores: int | None, progress: Progress) -> Report:
    """Flood a cluster of `masters` masters and no nodes.  With `cores`, this process and all that it starts use no more of
    them.  Raises BenchError, EmbeddedError and what a log raises.  Nothing of the cluster is left."""
    if cores is not None:
        _restrict(cores)
    machine = this_machine()
    data = home() / f"bench-{secrets.token_hex(4)}"
    try:
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(log_server(data / "nats", synced=False))
            connection = await Connection.open(server.url, CLUSTER, name="dorm bench", timeout=10.0, create=True)
            stack.push_async_callback(connection.close)
            running = []
            for number in range(masters):
                folder = data / f"master-{number + 1}"
                await asyncio.to_thread(folder.mkdir, parents=True)
                running.append(await stack.enter_async_context(master(folder, server.url)))
            measured = _Measured(connection, server, running)
            await measured.led()
            figures = await measured.flood(submissions, progress)
    finally:
        await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)
    return Report(
        bench="flood",
        machine=machine,
        settings={
            "submissions": submissions,
            "masters": masters,
            "cores": machine.cores,
            "clock": "log time",
        },
        figures=figures,
    )


def _restrict(cores: int) -> None:
    available = sorted(os.sched_getaffinity(0))
    if cores > len(available):
        raise BenchError(f"this process may use {len(available)} cores, not {cores}", code="bench.too_few_cores")
    os.sched_setaffinity(0, available[:cores])


class _Measured:
    """What happens to a running cluster during the flood."""

    def __init__(self, connection: Connection, server: Running, masters: list[Running]) -> None:
        self._connection = connection
        self._server = server
        self._masters = masters
        self._state = State()
        self._elections = 0
        self._flooded: list[int] = []
        """Log times of the flood's records."""
        self._sent: dict[str, int] = {}
        self._answers: list[float] = []

    async def led(self) -> None:
        """Return once a master leads."""
        try:
            async with asyncio.timeout(_LED_S), contextlib.aclosing(self._connection.log.read(follow=True)) as records:
                async for batch in records:
                    self._take(batch)
                    if self._elections:
                        return
        except TimeoutError:
            raise BenchError(f"no master led after {_LED_S:g} s", code="bench.too_slow") from None

    async def flood(self, submissions: int, progress: Progress) -> dict[str, Figure]:
        before = self._cpu_s()
        began, first = time.monotonic(), self._elections
        async with _gaps(self._server.url) as gaps, _flooding(self._server.url, submissions) as flooder:
            honest = asyncio.create_task(self._submit_honestly())
            try:
                await self._until_answered(submissions, flooder, progress)
            finally:
                honest.cancel()
                await asyncio.wait([honest])
        took = time.monotonic() - began
        used = {name: after - before[name] for name, after in self._cpu_s().items()}
        if not self._answers:
            raise BenchError("the honest user got no answer", code="bench.nothing_measured")
        return {
            "elections_count": figure(self._elections - first, "count", "<= 0"),
            "flood_s": figure((self._flooded[-1] - self._flooded[0]) / 1e9, "s"),
            "answered_s": figure(took, "s"),
            "answer_p50_s": figure(percentile(self._answers, 50), "s"),
            "answer_max_s": figure(max(self._answers), "s"),
            "renewal_max_s": figure(max(gaps, default=took), "s"),
            **{f"{name}_cpu_s": figure(seconds, "s") for name, seconds in used.items()},
        }

    def _cpu_s(self) -> dict[str, float]:
        return {"server": self._server.cpu_s(), "masters": sum(master.cpu_s() for master in self._masters)}

    async def _until_answered(self, submissions: int, flooder: asyncio.subprocess.Process, progress: Progress) -> None:
        try:
            async with asyncio.timeout(_LONGEST_S):
                async with contextlib.aclosing(
                    self._connection.log.read(after=self._state.seq, follow=True)
                ) as records:
                    async for batch in records:
                        self._take(batch)
                        progress(f"{len(self._flooded):,} of {submissions:,} submissions are stored")
                        if flooder.returncode:
                            raise BenchError("the flood ended by itself", code="bench.process_ended")
                        if len(self._flooded) >= submissions and not self._state.submissions:
                            return
        except TimeoutError:
            raise BenchError(f"the flood was not over after {_LONGEST_S:g} s", code="bench.too_slow") from None

    def _take(self, batch: list[Record]) -> None:
        for record in batch:
            event, _ = evolve(self._state, record)
            if isinstance(event, Round):
                self._elections += sum(isinstance(fact, MasterElected) for fact in event.events)
                for fact in event.events:
                    sent = self._sent.pop(getattr(fact, "submission", ""), None)
                    if sent is not None:
                        self._answers.append((record.time - sent) / 1e9)
            elif subjects.who_of(record.subject) == _USER:
                self._flooded.append(record.time)
            elif isinstance(event, AppSubmitted):
                self._sent[event.id] = record.time

    async def _submit_honestly(self) -> None:
        client = Client(self._connection.log, self._connection.bus, CLUSTER, user=_HONEST)
        number = 0
        while True:
            number += 1
            with contextlib.suppress(NoAnswer):
                await client.submit(_spec(f"honest-{number}"), answer_timeout=_ANSWER_S)
            await asyncio.sleep(_PAUSE_S)


@contextlib.asynccontextmanager
async def _gaps(url: str) -> AsyncIterator[list[float]]:
    """Yield the times between renewals of the lease, in seconds, to which each renewal adds one."""
    link = await Link.open(url, name="dorm bench", timeout=10.0)
    gaps: list[float] = []
    last = time.monotonic()

    def take(subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        del subject, reply, header, body
        nonlocal last
        last, before = time.monotonic(), last
        gaps.append(last - before)

    try:
        await link.take(lease_subject(CLUSTER), take)
        yield gaps
    finally:
        await link.close()


# --- the flood ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _flooding(url: str, submissions: int) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dorm.bench.flood", url, CLUSTER, str(submissions),
        stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


def _spec(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": ["sleep", "600"], "demand": {"cpu": "100m"}, **more}


def hostile(number: int) -> bytes:
    """Return the body of one submission of the flood; no master accepts it."""
    if number % _HUGE_OF == 0:
        spec = _spec(f"huge-{number}", env={"TEXT": "x" * LARGEST_SPEC})
    elif number % 5 == 0:
        return b"\xc1" + secrets.token_bytes(100)
    elif number % 5 == 1:
        spec = _spec(f"late-{number}", after=[{"app": "nobody-has-this-name", "when": "ended"}])
    elif number % 5 == 2:
        spec = _spec(f"wrong-{number}", n_min=3, n_max=2)
    else:
        spec = _spec(f"unknown-{number}", nobody_knows_this=[number])
    id = "flood.again" if number % 5 == 4 else f"flood.{number}.{secrets.token_hex(4)}"
    return encode(AppSubmitted(id=id, at=time.time_ns(), by=_USER, spec=spec))


def _bodies(submissions: int) -> Iterator[tuple[bytes, bool]]:
    """Yield bodies, and whether the sender waits until this one and all before are stored."""
    for number in range(1, submissions + 1):
        yield hostile(number), number % _WINDOW == 0 or number == submissions


async def _flood(url: str, cluster: str, submissions: int) -> None:
    link = await Link.open(url, name="flood", timeout=30.0)
    subject = subjects.fact(cluster, "AppSubmitted", _USER)
    try:
        with as_log_errors("flooding the log"):
            for body, waits in _bodies(submissions):
                if waits:
                    await link.jetstream().publish(subject, body, timeout=60.0)
                else:
                    await link.client.publish(subject, body)
    finally:
        await link.close()


def main() -> None:
    url, cluster, submissions = sys.argv[1:]
    asyncio.run(_flood(url, cluster, int(submissions)))


if __name__ == "__main__":
    main()
