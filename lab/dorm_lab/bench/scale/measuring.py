"""The unit costs of the model: appends to a log on three servers that sync each record, bytes sent to readers, folding."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING

from dorm.bench.codec import bench_codec
from dorm.bench.report import Report, figure, this_machine
from dorm_lab.bench.scale.model import Cluster, Costs, first_full, loads, round_bytes
from dorm_lab.bench.scale.servers import CLUSTER, three_servers
from events import subjects
from events.codec import encode
from events.kinds import AppProgressed
from events.nats.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.bench.report import Progress
    from dorm_lab.bench.scale.servers import Servers

_IN_FLIGHT = 128
_READERS = 8
_LARGE = 64 * 1024
_LARGE_RECORDS = 120
_CODEC_EVENTS, _CODEC_PASSES = 20_000, 3


async def bench_scale(clusters: Sequence[Cluster], *, seconds: float, progress: Progress) -> Report:
    """Measure the unit costs, and report what each cluster would use.  Raises BenchError, and the log's errors."""
    machine = this_machine()
    progress("folding")
    fold = await asyncio.to_thread(
        lambda: bench_codec(events=_CODEC_EVENTS, passes=_CODEC_PASSES, progress=lambda _: None)
    )
    async with three_servers() as servers:
        progress("appending")
        rate, append_cpu_s = await _appends(servers, seconds)
        progress("sending")
        out_cpu_s = await _sending(servers, append_cpu_s)
    costs = Costs(
        appends_per_s=rate,
        append_cpu_us=1e6 * append_cpu_s,
        out_cpu_s_per_mb=out_cpu_s,
        fold_us=fold.figures["decode_fold_us"].value,
    )
    figures = {
        "appends_per_s": figure(costs.appends_per_s, "records/s"),
        "append_server_cpu_us": figure(costs.append_cpu_us, "us"),
        "send_server_cpu_ms_per_mb": figure(1e3 * costs.out_cpu_s_per_mb, "ms"),
        "fold_us": figure(costs.fold_us, "us"),
    }
    for cluster in clusters:
        shares, name = loads(cluster, costs), f"n{cluster.nodes}"
        figures[f"{name}_round_bytes"] = figure(round_bytes(cluster), "bytes")
        figures |= {f"{name}_{resource}_share": figure(share, "of 1") for resource, share in shares.items()}
    settings = {
        "seconds": seconds,
        "full_first": {str(cluster.nodes): first_full(loads(cluster, costs)) for cluster in clusters},
        "clusters": [
            {"nodes": cluster.nodes, "apps": cluster.apps, "decisions_per_s": cluster.decisions_per_s}
            for cluster in clusters
        ],
    }
    return Report(bench="scale", machine=machine, settings=settings, figures=figures)


async def _appends(servers: Servers, seconds: float) -> tuple[float, float]:
    """Return appends a second, and CPU seconds of all servers for one."""
    log = servers.connection.log
    until, count = time.monotonic() + seconds, 0

    async def one(who: str) -> None:
        nonlocal count
        subject = subjects.fact(CLUSTER, "AppProgressed", who)
        while time.monotonic() < until:
            event = AppProgressed(
                id=f"{who}.{secrets.token_hex(8)}", at=time.time_ns(), by=who, app="app-1", generation=1, step=count
            )
            await log.append(subject, encode(event), msg_id=event.id, timeout=30.0)
            count += 1

    cpu, began = servers.cpu_s(), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(_IN_FLIGHT):
            tasks.create_task(one(f"n{number}"))
    took = time.monotonic() - began
    return count / took, (servers.cpu_s() - cpu) / count


async def _sending(servers: Servers, append_cpu_s: float) -> float:
    """Return the CPU seconds of the servers for a megabyte to readers: the same large records with readers and without."""
    alone = await _large_records(servers, 0)
    read = await _large_records(servers, _READERS)
    sent = _READERS * _LARGE_RECORDS * _LARGE / 1e6
    return max(0.0, read - alone) / sent


async def _large_records(servers: Servers, readers: int) -> float:
    """Append large records while this many readers follow the log; return the CPU seconds of the servers."""
    after = await servers.connection.log.end()
    async with contextlib.AsyncExitStack() as stack:
        following = []
        for _ in range(readers):
            connection = await Connection.open(servers.url, CLUSTER)
            stack.push_async_callback(connection.close)
            following.append(asyncio.create_task(_follow(connection, after, after + _LARGE_RECORDS)))
        cpu = servers.cpu_s()
        for number in range(_LARGE_RECORDS):
            subject = subjects.fact(CLUSTER, "AppProgressed", "large")
            await servers.connection.log.append(
                subject, secrets.token_bytes(_LARGE), msg_id=f"large.{after}.{number}", timeout=30.0
            )
        await asyncio.gather(*following)
        return servers.cpu_s() - cpu


async def _follow(connection: Connection, after: int, end: int) -> None:
    async with contextlib.aclosing(connection.log.read(after=after, follow=True)) as batches:
        async for batch in batches:
            if batch[-1].seq >= end:
                return
