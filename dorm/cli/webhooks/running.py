"""`dorm webhooks run`: the process that delivers."""

from __future__ import annotations

import contextlib
import time
from importlib.metadata import version

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.metrics_address import Metrics, metrics_address
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.service import run_service
from dorm.cli.webhooks.shared import Allow, KeyFile, keys_of, networks


@command(user=True, before="verbose")
async def run_deliverer(
    cx: Cluster,
    key: KeyFile = None,
    allow: Allow = None,
    metrics: Metrics = None,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Deliver the cluster's webhooks until Ctrl-C; `dorm up` does so by itself.

    The log's server keeps the deliverer's position in the log, so nothing is lost
    while it does not run, and several deliverers may run. Requests go only to
    public addresses, unless --allow names a network, and follow no redirects.

    [bold]Examples[/]

      dorm webhooks run --url nats://10.0.0.1:4222 --cluster lab

      dorm webhooks run --allow 10.20.0.0/16

      dorm webhooks run --metrics 9477
    """
    from dorm.health.checks import Health

    configure(verbose, log_json)
    health = Health(f"dorm {version('dorm')}", "the deliverer waits for the NATS servers")
    allowed, serve_at = networks(allow), metrics_address(metrics)

    async def work() -> None:
        from dorm.client.client import login_name
        from dorm.webhooks.deliverer import Deliverer
        from events.subjects import token

        keys = keys_of(key, cx)
        connection = await cx.target().connection("dorm-webhooks", patient=True)
        who = token(cx.user or connection.user or login_name())
        deliverer = Deliverer(connection, keys, who=who, clock=time.time_ns, allowed=allowed)
        health.watch(deliverer.checks)
        try:
            async with contextlib.AsyncExitStack() as stack:
                if serve_at is not None:
                    from dorm.metrics.server import MetricsServer

                    await stack.enter_async_context(MetricsServer(serve_at, [deliverer.metrics], health=health))
                await deliverer.run()
        finally:
            await connection.close()

    await run_service(work(), health)
