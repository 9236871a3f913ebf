"""The cost of a day of one app on the log: `python -m tests.lab.progress`.

The app reports each second.  Its reports go through the agent's own choice in virtual time, then to a real NATS server: marks
to the log, the others to the stream beside it.  For comparison, all of them go to the log of another cluster, as in releases
without such a stream.  It prints the bytes of each stream, and the CPU time of server and client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import psutil

from agents.progress import Watermarks
from events import subjects
from events.codec import encode
from events.kinds import AppProgressed
from events.nats.connection import Connection
from events.nats.settings import stream_state
from events.nats.stores import progress_stream
from events.nats.streams import log_stream
from tests.lab.machines.nats_server import NatsServer

NODE, APP = "node-1", "digits-mlp-abcdef"
AT_ONCE = 256


def report(second: int) -> AppProgressed:
    return AppProgressed(
        id=f"{NODE}.{APP}-1-0.AppProgressed.{58 * second}", at=1_763_000_000_000_000_000 + second * 10**9, by=NODE,
        app=APP, generation=1, step=12 * second, loss=1 / (second + 1), samples_per_s=950.5,
    )  # fmt: skip


async def store(connection: Connection, reports: list[tuple[AppProgressed, bool]]) -> None:
    async def one(event: AppProgressed, on_log: bool) -> None:
        if on_log:
            subject = subjects.fact(connection.cluster, "AppProgressed", NODE)
            await connection.log.append(subject, encode(event), msg_id=event.id)
        else:
            subject = subjects.progress(connection.cluster, NODE, event.app)
            await connection.log.progress.put(subject, encode(event), msg_id=event.id)

    for first in range(0, len(reports), AT_ONCE):
        await asyncio.gather(*(one(*each) for each in reports[first : first + AT_ONCE]))


async def measured(server: NatsServer, cluster: str, reports: list[tuple[AppProgressed, bool]]) -> dict[str, object]:
    connection = await Connection.open(server.url, cluster, create=True)
    assert server.pid is not None
    of_server, before = psutil.Process(server.pid), time.process_time()
    server_before = sum(of_server.cpu_times()[:2])
    await store(connection, reports)
    server_s, own_s = sum(of_server.cpu_times()[:2]) - server_before, time.process_time() - before
    link = connection._link
    log, beside = [await stream_state(link, name(cluster), 5.0) for name in (log_stream, progress_stream)]
    await connection.close()
    return {
        "log records": log["messages"], "log bytes": log["bytes"],
        "beside records": beside["messages"], "beside bytes": beside["bytes"],
        "server CPU s": round(server_s, 2), "client CPU s": round(own_s, 2),
    }  # fmt: skip


async def main(seconds: int) -> None:
    marks, chosen = Watermarks(), list[tuple[AppProgressed, bool]]()
    for second in range(seconds):
        final = second == seconds - 1
        chosen += [
            (fact, on_log)
            for fact, on_log in marks.chosen([report(second)], float(second), final=final)
            if isinstance(fact, AppProgressed)
        ]
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        await server.start()
        try:
            before = await measured(server, "before", [(event, True) for event, _ in chosen])
            now = await measured(server, "now", chosen)
        finally:
            await server.stop()
    json.dump({"seconds": seconds, "all on the log": before, "marks on the log": now}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seconds", type=int, default=86_400, help="how long the app reports")
    asyncio.run(main(arguments.parse_args().seconds))
