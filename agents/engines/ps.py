"""The engine `ps`: parameter servers and workers, with the variables of DMLC's tracker, as ps-lite and MXNet read them.

`DMLC_ROLE` is `server` or `worker`; `DMLC_NODE_HOST` and `PORT` make ps-lite listen where Dorm has reserved a port.  ps-lite
also wants a scheduler, a small process that only introduces the others.  With `scheduler: true` the first container runs the
command a second time as that, as DMLC's tracker does; the container ends with its server or worker.

Programs without ps-lite find the servers in `DORM_SERVERS` and the workers in `DORM_WORKERS`, as `host:port` by number, and
their own number in `DORM_ROLE_RANK`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agents.engines.interface import Launch, endpoint
from agents.engines.roles import servers_and_workers

if TYPE_CHECKING:
    from agents.engines.interface import Place

_BESIDE: Final = 'DMLC_ROLE=scheduler "$@" & exec "$@"'
"""Signals reach the whole process group, so the scheduler stops with its container."""


def prepare(place: Place) -> Launch:
    servers, workers = servers_and_workers(place)
    role, group = ("server", servers) if place.own in servers else ("worker", workers)
    number = str(group.index(place.own))
    env = {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": place.master_address,
        "DMLC_PS_ROOT_PORT": str(place.master_port),
        "DMLC_NUM_SERVER": str(len(servers)),
        "DMLC_NUM_WORKER": str(len(workers)),
        "DMLC_NODE_HOST": place.own.address,
        "PORT": str(place.own.port),
        f"DMLC_{role.upper()}_ID": number,
        "DMLC_TASK_ID": number,
        "DORM_ROLE": role,
        "DORM_ROLE_RANK": number,
        "DORM_SERVERS": ",".join(map(endpoint, servers)),
        "DORM_WORKERS": ",".join(map(endpoint, workers)),
    }
    command = place.command
    if place.spec.engine_options.scheduler and place.rank == 0:
        command = ("/bin/sh", "-c", _BESIDE, "sh", *command)
    return Launch(command, env=env)
