"""The engine `tensorflow`: TF_CONFIG, as TensorFlow's TFConfigClusterResolver reads it.

Without servers every container is a `worker`, as MultiWorkerMirroredStrategy wants it; worker 0 is the chief by convention.
With servers there are `ps` tasks, and the first container is the `chief`, which coordinates a ParameterServerStrategy.  The
others run a `tf.distribute.Server`, which never ends, so the launcher ends them with the chief: the app is complete when the
chief is done.  A request to stop reaches the chief alone, which needs the servers to save their parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agents.engines import launching
from agents.engines.interface import Launch, endpoint
from agents.engines.roles import servers_and_workers

if TYPE_CHECKING:
    from agents.engines.interface import Place


def prepare(place: Place) -> Launch:
    servers, others = servers_and_workers(place)
    tasks = {"worker": others}
    if servers:
        tasks = {"chief": others[:1], "worker": others[1:], "ps": servers}
    config = {
        "cluster": {kind: [endpoint(placed) for placed in group] for kind, group in tasks.items() if group},
        "task": next(
            {"type": kind, "index": group.index(place.own)} for kind, group in tasks.items() if place.own in group
        ),
    }
    env = {"TF_CONFIG": msgspec.json.encode(config).decode()}
    if not servers:
        return Launch(place.command, env=env)
    own = (*launching.RANK, *place.command) if place.rank == 0 else place.command
    return Launch(launching.command(place, own), env=env, files=launching.FILES)
