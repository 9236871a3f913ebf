"""A real cluster under a random schedule of real faults, while apps train and submissions arrive.

    cluster     three machines: engine, NATS server, master, agent on each         (`chaos_cluster`)
    faults      15 kinds, one after the other, some while the last one lasts       (`chaos_faults`)
    work        apps that train, fail and crash; probes                      (`chaos_work`)

Then the faults stop and all apps end.  Three witnesses show what happened: the log (`chaos_log`), with an audit and each
server's copy of it (`chaos_replicas`); the training processes' own records of when they ran (`chaos_record`); and each
training's last checkpoint, compared with that of an undisturbed run (`chaos_results`).
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dorm.bench import BenchError
from dorm.bench.report import Report, this_machine
from events.codec import decode
from events.kinds import MasterElected, PolicyChanged, Round
from events.log.records import LogError
from replay.audit.audit import verify
from replay.export.export import export
from tests.lab.chaos.cluster import CAPACITY, MACHINES, MASTER_LEASE_S, ChaosCluster
from tests.lab.chaos.faults import KINDS, Attack, Fault, schedule
from tests.lab.chaos.figures import Evidence, figures
from tests.lab.chaos.log import told_by
from tests.lab.chaos.record import stays
from tests.lab.chaos.recovery import Recovery, pauses, recoveries
from tests.lab.chaos.replicas import compare
from tests.lab.chaos.results import undisturbed
from tests.lab.chaos.work import Prober, Submitter, jobs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.bench.report import Figure, Progress
    from dorm.client.client import Client

_ASK_AGAIN_S = 0.5
_FIRST_STEP_S = 60.0


class Wanted(msgspec.Struct, frozen=True):
    """One run.  Times in seconds."""

    attacked_s: float
    seed: int = 1
    kinds: tuple[str, ...] = tuple(KINDS)
    """Duration of the faults."""
    faults: tuple[Fault, ...] = ()
    """Kinds of faults that replace the seed's schedule."""
    gap_s: tuple[float, float] = (3.0, 6.0)
    """Time between submissions."""
    heartbeat_s: float = 0.6
    node_grace_s: float = 2.0
    node_lease_s: float = 8.0
    ends_within_s: float = 240.0
    """Time after the last fault within which all apps have to end."""
    keep: Path | None = None
    """A folder for the log, the output of every process, and the injected faults; None keeps nothing."""


class Done(msgspec.Struct, frozen=True):
    """The result of a run."""

    report: Report
    recoveries: list[Recovery]
    wrong: list[str]
    """Violations, one line each."""


async def bench_chaos(wanted: Wanted, *, tell: Progress) -> Done:
    """Run the faults, and remove the cluster afterwards.  Raises BenchError if it can't be built, or never recovers."""
    machine = this_machine()
    tell("training undisturbed")
    alone = await undisturbed()
    settings = PolicyChanged(
        heartbeat_s=wanted.heartbeat_s, node_grace_s=wanted.node_grace_s, node_lease_s=wanted.node_lease_s
    )
    async with ChaosCluster(settings, tell) as cluster:
        try:
            evidence = await _attacked(cluster, wanted, tell)
        finally:
            if wanted.keep is not None:
                await cluster.save_output(wanted.keep)
        judged, wrong = figures(evidence, alone, cluster.checkpoints)
        wrong += await asyncio.to_thread(cluster.false_alarms)
    if wanted.keep is not None:
        await asyncio.to_thread((wanted.keep / "chaos.json").write_bytes, _story(evidence, judged, wrong))
    recovered = evidence.recovered
    report = Report(
        bench="chaos",
        machine=machine,
        settings={
            "attacked_s": wanted.attacked_s,
            "seed": wanted.seed,
            "kinds": wanted.kinds,
            "machines": MACHINES,
            "node_capacity": CAPACITY,
            "master_lease_s": MASTER_LEASE_S,
            "heartbeat_s": wanted.heartbeat_s,
            "node_grace_s": wanted.node_grace_s,
            "node_lease_s": wanted.node_lease_s,
            "submission_gap_s": wanted.gap_s,
        },
        figures=judged,
    )
    return Done(report, recovered, wrong)


def _story(evidence: Evidence, judged: dict[str, Figure], wrong: list[str]) -> bytes:
    """Return the injected faults and their effects, to investigate causes; times are those of the log (UTC ns)."""
    document = {
        "wrong": wrong,
        "faults": [
            {**msgspec.to_builtins(fault), **one._asdict()}
            for fault, one in zip(evidence.faults, evidence.recovered, strict=True)
        ],
        "pauses": [pause._asdict() for pause in evidence.pauses],
        "submissions": evidence.submissions,
        "figures": judged,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


async def _attacked(cluster: ChaosCluster, wanted: Wanted, tell: Progress) -> Evidence:
    loop = asyncio.get_running_loop()
    client = cluster.client
    leader = Leader(client)
    attack = Attack(cluster, lambda: leader.machine)
    submitter = Submitter(client, jobs(wanted.seed), wanted.gap_s, wanted.seed)
    prober = Prober(client)
    faults: Iterable[Fault] = wanted.faults or schedule(wanted.seed, wanted.kinds)
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(leader.run()), tasks.create_task(prober.run())]
        work = tasks.create_task(submitter.run())
        tell("waiting for the first app to train")
        await _trains(client)
        stop_at = loop.time() + wanted.attacked_s
        await attack.run(faults, lambda what: tell(f"{len(attack.injected) + 1}: {what}"), stop_at)
        tell("no more faults: waiting for what was submitted last")
        submitter.enough.set()
        await work
        tell("waiting for all apps to end")
        unended = await _all_end(client, submitter, wanted.ends_within_s)
        for task in beside:
            task.cancel()
    tell("reading the log")
    told = await told_by(client.log)
    if wanted.keep is not None:
        await export(client.log, wanted.keep / "chaos.dorm", force=True)
    tell("comparing the servers' copies of the log")
    copies = await compare(cluster.copies, [record async for batch in client.log.read() for record in batch])
    tell("auditing the log")
    audit = await verify(client.log)
    records = {app: await asyncio.to_thread(stays, cluster.checkpoints / app) for app in sorted(told.state.apps)}
    jobs_of = {told.accepted.get(one.id): one.job for one in submitter.submissions}
    steady = {app: record for app, record in records.items() if app in jobs_of and jobs_of[app].steady}
    return Evidence(
        faults=attack.injected,
        submissions=submitter.submissions,
        probes=prober.probes,
        told=told,
        records=records,
        unended=unended,
        containers_left=await cluster.containers_running(),
        services_ended=sum(not end.asked for service in cluster.services for end in service.ends),
        audit=audit,
        copies_wrong=copies,
        recovered=recoveries(attack.injected, told, steady, prober.probes),
        pauses=pauses(told, steady),
    )


async def _trains(client: Client) -> None:
    """Wait until an app trains: a fault before that shows nothing."""
    try:
        async with asyncio.timeout(_FIRST_STEP_S):
            async for state, _ in client.watch():
                if any(app.step for app in state.apps.values()):
                    return
    except TimeoutError:
        raise BenchError(
            f"no app trains within {_FIRST_STEP_S:g} s; --keep FOLDER keeps what all processes say"
        ) from None


async def _all_end(client: Client, submitter: Submitter, within_s: float) -> list[str]:
    """Wait until every stored submission is answered and every app has ended; return the names of those that have not."""
    stored = {one.id for one in submitter.submissions if one.outcome in ("accepted", "stored")}
    waiting: list[str] = ["the log"]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while waiting:
                with contextlib.suppress(LogError):
                    state = await client.state()
                    known = {app.submission for app in state.apps.values()}
                    waiting = [app.name for app in state.live_apps()] + sorted(stored - known)
                await asyncio.sleep(_ASK_AGAIN_S)
    return waiting


class Leader:
    """The leading master, according to the log."""

    def __init__(self, client: Client) -> None:
        self.machine: int | None = None
        self._client = client

    async def run(self) -> None:
        """Follow the log until cancelled."""
        async for record in self._client.records(follow=True):
            event = decode(record)
            if isinstance(event, Round) and any(isinstance(fact, MasterElected) for fact in event.events):
                self.machine = int(event.by.split("-")[1])  # master-NUMBER-drawn
