"""Poison on a real cluster: every pill on the log of a running cluster, and the largest messages that its server accepts.

A stranger publishes them, as other users and as the node, while two apps run and a client follows.  Pills about apps name one
of them, the victim; the other, the witness, has to complete undisturbed.

    python -m tests.lab.poison        prints the figures
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import nats

from dorm.local.cluster import LocalCluster, LocalOptions
from events import kinds as k
from events import subjects
from events.codec import decode
from events.kinds import Unknown, Unreadable
from events.limits import LEAST_MAX_PAYLOAD
from events.log.records import Record
from replay.audit.audit import verify
from tests.core.fold.pills import FACTS, KINDS, NO_EVENTS, bodies_of, document_of, poisoned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dorm.core.state import State

CLUSTER = "poisoned"
LARGE = 64 * 1024
"""Bytes: only one in `_EACH` larger pills is sent, because all of them together have 350 MB."""
_EACH = 20
_OPERATORS = (k.PolicyChanged, k.NodeDrainRequested, k.TrustEnabled)
"""Valid requests of operators take effect, however unwise; only unreadable ones are poison."""
_DONE_S = 120.0
TRAINER = """\
import json, os, time
while not os.path.exists(os.path.join(os.environ["DORM_CHECKPOINT_DIR"], "end")):
    time.sleep(0.1)
with open(os.environ["DORM_PROGRESS"], "a") as progress:
    progress.write(json.dumps({"step": 7}) + "\\n" + json.dumps({"checkpoint": 7}) + "\\n")
"""


class Figures(msgspec.Struct):
    """What was sent, and which processes ended."""

    poison_pills: int = 0
    unreadable: int = 0
    """How many of them the fold could not read, by the state's own count."""
    masters_ended: int = 0
    agents_ended: int = 0
    readers_ended: int = 0
    elections: int = 0
    witness: str = ""
    """How the witness app ended."""
    steps: int = 0
    divergence: str = ""
    """The first divergence in an audit; "" if there is none."""


def pills(state: State, each: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield subjects and bodies: of each kind the plain one, and every `each`-th of the poisoned ones."""
    large = 0
    for place, cls in enumerate(KINDS):
        plain = document_of(state, cls, "victim")
        for document in (plain, *itertools.islice(poisoned(cls, plain), place % each, None, each)):
            for body in bodies_of(document):
                large += len(body) > LARGE
                if len(body) > LARGE and large % _EACH:
                    continue
                for who in ("eve", "node-1"):
                    subject = _subject(cls, who)
                    if _is_poison(cls, subject, body):
                        yield subject, body
        for body in NO_EVENTS:
            yield _subject(cls, "eve"), body
    for size in (LEAST_MAX_PAYLOAD - 2048, LEAST_MAX_PAYLOAD, 4 * LEAST_MAX_PAYLOAD):
        yield _subject(k.AppSubmitted, "eve"), b"{" + b" " * size + b"}"


def _subject(cls: type[k.Event], who: str) -> str:
    return subjects.rounds(CLUSTER) if cls is k.Round else subjects.fact(CLUSTER, cls.__name__, who)


def _is_poison(cls: type[k.Event], subject: str, body: bytes) -> bool:
    event = decode(Record(1, 1, subject, body))
    if isinstance(event, Unreadable | Unknown):
        return True
    return cls not in FACTS and not isinstance(event, (k.Round, *_OPERATORS))


def void_rounds(state: State) -> Iterator[tuple[str, bytes]]:
    """Yield readable rounds that no state accepts: of another epoch than the master's.  A round of its own epoch would be a
    forgery, which only signatures and permissions stop; an audit reports both, as it should."""
    plain = document_of(state, k.Round, "victim")
    for document in poisoned(k.Round, {**plain, "epoch": 10**6}):
        for body in bodies_of(document):
            event = decode(Record(1, 1, subjects.rounds(CLUSTER), body))
            if isinstance(event, k.Round) and event.epoch > 1000:
                yield subjects.rounds(CLUSTER), body


async def run(data: Path, ports: tuple[int, int], each: int = 1) -> Figures:
    """`each`: only every such pill of a kind is sent."""
    options = LocalOptions(
        data=data, cluster=CLUSTER, runtime="process", capacity={"cpu": 4000, "memory": 2**30}, ports=ports,
        report_interval_s=0.2, progress_interval_s=0.1,
    )  # fmt: skip
    figures = Figures()
    async with LocalCluster(options) as cluster:
        spec = {"command": [sys.executable, "-c", TRAINER], "demand": {"cpu": 1}}
        witness = await cluster.client.submit({"name": "witness", **spec})
        victim = await cluster.client.submit({"name": "victim", **spec})
        async for state, _ in cluster.client.watch():
            if all(state.apps[app.id].settled for app in (witness, victim)):
                break
        failed = asyncio.create_task(cluster.failed())
        reader = asyncio.create_task(_read(cluster))
        state = await cluster.client.state()
        figures.poison_pills = await _send(cluster, pills(state, each))
        found = (await verify(cluster.client.log)).divergence
        figures.divergence = f"{found}" if found is not None else ""
        figures.poison_pills += await _send(cluster, itertools.islice(void_rounds(state), 0, None, each))
        (options.data / "checkpoints" / witness.id / "end").touch()
        completed = asyncio.create_task(cluster.client.wait(witness.id))
        await asyncio.wait({failed, completed}, timeout=_DONE_S, return_when=asyncio.FIRST_COMPLETED)
        if completed.done():
            ended = await completed
            figures.witness, figures.steps = ended.ended, ended.step
        state = await cluster.client.state()
        figures.unreadable = state.counters.unreadable + state.counters.unknown
        figures.elections = state.epoch
        figures.readers_ended = int(reader.done())
        figures.masters_ended, figures.agents_ended = _ended(failed)
        for task in (failed, reader, completed):
            task.cancel()
        await asyncio.gather(failed, reader, completed, return_exceptions=True)
        await cluster.stop_now()
    return figures


def _ended(failed: asyncio.Task[None]) -> tuple[int, int]:
    """Return how many masters and agents ended; the cluster's tasks end together, so their error says which one it was."""
    if not failed.done():
        return 0, 0
    error = repr(failed.exception())
    return (0, 1) if "agents" in error else (1, 0)


async def _read(cluster: LocalCluster) -> None:
    async for _ in cluster.client.watch():
        pass


async def _send(cluster: LocalCluster, messages: Iterable[tuple[str, bytes]]) -> int:
    """Publish, and wait now and then until the master has folded what is stored: `dorm bench flood` measures the effect of a
    flood on a lease, with masters in processes of their own."""
    stranger = await nats.connect(cluster.server.url, pending_size=64 * 2**20)
    sent = 0
    try:
        for sent, (subject, body) in enumerate(messages, 1):
            if len(body) > stranger.max_payload:
                continue  # The server would close the connection.
            if sent % 400 == 0:
                stored = json.loads((await stranger.request(subject, body, timeout=_DONE_S)).data).get("seq", 0)
                async with asyncio.timeout(_DONE_S):
                    while cluster.master.state.seq < stored:  # noqa: ASYNC110 - a master tells nobody how far it is
                        await asyncio.sleep(0.01)
                await stranger.publish(subjects.report(CLUSTER, "node-1"), body[:LARGE])
            else:
                await stranger.publish(subject, body)
        await stranger.flush()
    finally:
        await stranger.close()
    return sent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(run(Path(folder), (23_100, 23_199)))
    print(json.dumps(msgspec.to_builtins(figures), indent=2))
    sys.exit(int(bool(figures.masters_ended or figures.agents_ended or figures.readers_ended)))


if __name__ == "__main__":
    main()
