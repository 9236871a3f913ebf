"""The command line of a program that is a parameter server or a worker, depending on its container's role."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from compose.apps.learning import digits, options, training
from compose.apps.served.connections import Servers
from compose.apps.served.roles import read_role
from compose.apps.served.server import Server
from compose.apps.served.worker import Worker
from compose.apps.worker import contract
from compose.apps.worker.failures import AppFailure, BadSetting
from compose.apps.worker.process import EXIT_STOPPED
from compose.apps.worker.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compose.apps.learning.checkpoint import Checkpoint
    from compose.apps.learning.model import Model, Program
    from compose.apps.learning.options import Options
    from compose.apps.served.roles import Role
    from compose.apps.worker.contract import Place
    from compose.apps.worker.process import Stop


def main(program: Program, stop: Stop, arguments: Sequence[str] | None = None) -> int:
    """Run one server or worker to its end; return the exit code, after printing the reason if it is not 0."""
    try:
        chosen = options.parse(program, arguments)
        place, role = contract.read_place(os.environ), read_role(os.environ)
        data = digits.load(os.environ)
        model = program.build(data, chosen.sizes)
        if chosen.batch > model.rows:
            raise BadSetting(f"--batch is {chosen.batch}, but there are {model.rows} rows to train on")
        state = training.first_state(place, model, chosen, training.settings_of(program, chosen, data))
        work = _serve if role.serves else _train
        return work(program, stop, chosen, place, role, model, state)
    except AppFailure as failure:
        print(f"{program.name}: {failure}", file=sys.stderr, flush=True)
        return failure.exit_code


def _serve(
    program: Program, stop: Stop, chosen: Options, place: Place, role: Role, model: Model, state: Checkpoint
) -> int:
    part = role.part(role.number, len(state.parameters))
    server = Server(role, chosen, part.stop - part.start, stop)
    print(f"{program.name}: {role.label} holds {server.size} parameters", flush=True)
    try:
        return 0 if server.serve(place, state.digest()) else EXIT_STOPPED
    except AppFailure:
        if stop.asked:
            return EXIT_STOPPED  # the workers left at the same request a moment earlier
        raise


def _train(
    program: Program, stop: Stop, chosen: Options, place: Place, role: Role, model: Model, state: Checkpoint
) -> int:
    progress = Progress(place.progress if role.number == 0 else None)
    servers = Servers(role, chosen, len(state.parameters), state.digest())
    stop.begin_training()
    worker = Worker(place, role, model, chosen, servers, stop, progress)
    print(
        f"{program.name}: {role.label} {'goes on' if chosen.resume else 'starts'} after step {state.step}", flush=True
    )
    try:
        state = worker.train(state)
        servers.end("ended", "finished" if state.step >= chosen.steps else "stopped")
    except AppFailure as failure:
        if stop.asked and worker.saved_step == worker.step:
            return EXIT_STOPPED  # the others left at the same request a moment earlier, and no work was done since
        servers.end("gave_up", str(failure))
        raise
    finally:
        servers.close()
    if state.step < chosen.steps:
        print(f"{program.name}: {role.label} stopped after step {state.step}", flush=True)
        return EXIT_STOPPED
    if role.number == 0:
        result = {"step": state.step, "loss": state.loss, **model.quality(state.parameters)}
        print(json.dumps({"result": result}), flush=True)
    return 0
