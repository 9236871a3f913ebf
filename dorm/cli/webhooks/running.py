"""`dorm webhooks run`: the process that delivers."""

from __future__ import annotations

import time

from dorm.cli.connect import ClusterName, Url, User, target
from dorm.cli.errors import run
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.signals import run_until_stopped
from dorm.cli.webhooks.shared import Allow, KeyFile, keys_of, networks


def run_deliverer(
    key: KeyFile = None,
    allow: Allow = None,
    url: Url = None,
    cluster: ClusterName = None,
    user: User = None,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Deliver the cluster's webhooks until Ctrl-C; `dorm up` does so by itself.

    Its place in the log is kept by the log's server, so nothing is lost while it does not run, and several may run.
    Requests go to public addresses only, unless --allow names a network, and follow no redirects.

    [bold]Examples[/]

      dorm webhooks run --url nats://10.0.0.1:4222 --cluster lab

      dorm webhooks run --allow 10.20.0.0/16
    """
    configure(verbose, log_json)
    allowed = networks(allow)

    async def work() -> None:
        from dorm.client.client import login_name
        from dorm.webhooks.deliverer import Deliverer
        from events.subjects import token

        keys = keys_of(key, url, cluster)
        connection = await target(url, cluster).connection("dorm-webhooks", patient=True)
        try:
            await Deliverer(
                connection,
                keys,
                who=token(user or connection.user or login_name()),
                clock=time.time_ns,
                allowed=allowed,
            ).run()
        finally:
            await connection.close()

    run(run_until_stopped(work()))
