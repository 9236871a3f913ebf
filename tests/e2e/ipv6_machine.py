"""A cluster on a machine whose only address is `::1`, for `test_ipv6.py`: `python -m tests.e2e.ipv6_machine FOLDER`.

It writes `found.json`: how each app ended, the addresses that its containers were told, and where the cluster's parts listen.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from dorm.local.cluster import LocalCluster, LocalOptions
from dorm.local.companions import ApiProcess
from dorm.metrics.address import Address
from tests.e2e.ports import own_ports
from tests.e2e.story import until

_SHOW = "env | grep -E '^(DORM_PEERS|DORM_MASTER_ADDR|MASTER_ADDR)=' > $DORM_CHECKPOINT_DIR/told-$DORM_SLOT; exec "

_WORKER = Path(__file__).with_name("ipv6_worker.py")


def app(name: str, command: str, **more: Any) -> dict[str, Any]:
    shell = ["sh", "-c", _SHOW + command]
    return {"name": name, "command": shell, "demand": {"cpu": "500m"}, "n_min": 2, "n_max": 2, "grace": "1s", **more}


APPS = (
    app("plain", f"{sys.executable} {_WORKER} greets"),
    app("elastic", f"{sys.executable} {_WORKER} trains", engine="elastic", elastic="live"),
)


async def main(folder: Path) -> None:
    options = LocalOptions(
        data=folder,
        cluster="six",
        capacity={"cpu": 2000, "memory": 2**30},
        ports=own_ports(),
        runtime="process",
        report_interval_s=0.5,
        progress_interval_s=0.2,
        metrics=Address("::1", 0),
    )
    async with LocalCluster(options) as cluster:
        api = ApiProcess(cluster.server.url, options.cluster, folder / "api.log", 0)
        try:
            submitted = [await cluster.client.submit(one) for one in APPS]
            state = await until(cluster.client, lambda s: all(one.ended for one in s.apps.values()), "all have ended")
            ends = {one.name: one.ended for one in state.apps.values()}
            told = {
                one.name: [path.read_text() for path in sorted((folder / "checkpoints" / one.id).glob("told-*"))]
                for one in (state.apps[each.id] for each in submitted)
            }
            addresses = sorted({node.address for node in state.nodes.values()})
            listening = [cluster.server.url, cluster.metrics_url, api.url]
            found = {"ends": ends, "told": told, "nodes": addresses, "listening": listening}
            (folder / "found.json").write_text(json.dumps(found))
        finally:
            await cluster.stop_now()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
