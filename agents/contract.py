"""The contract between Dorm and an app: a container's environment, its files, and the command that starts it.

No library is needed inside.  Variables in the app's own command and `env` have their values here
(`events.spec.variables`).  `DORM_PEERS` is `host:port` by rank, so that a worker can listen on its own entry and reach
all others; a rank is the position of a slot among the generation's slots.

`ports_of` are the ports on which a container should listen; `listens` tells whether another process already does.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

import msgspec

from agents import engines
from agents import environment as environments
from agents.engines import Place, endpoint
from agents.runtime import secrets
from agents.runtime.interface import BATCH_FILE, MEMBERS_FILE, PROGRESS_FILE, ContainerSpec, Key, Mount, Refused
from events.quantities import CPU
from events.spec import shipped, volumes_of
from events.spec.variables import TooLong, expanded, expanded_env, own_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agents.environment import Environment
    from events.kinds import Placed
    from events.parts import AppPart
    from events.spec import AppSpec


# --- contract ---------------------------------------------------------------------------------------------------------

PORT_TAKEN = errno.EADDRINUSE
"""98, the exit code by which an app reports that another process listens on a port it was given."""


def container_spec(
    app_id: str,
    app: AppPart,
    slot: int,
    *,
    checkpoint_dir: str,
    checkpoint_mount: str,
    run_dir: str,
    devices: tuple[str, ...],
    outputs_dir: str = "",
    outputs_mount: str = "",
    mounts: tuple[Mount, ...] = (),
    environment: Environment | None = None,
) -> ContainerSpec:
    """Return everything that a runtime needs for one slot of the app's released generation.

    `checkpoint_dir` is the host's path of the app's checkpoints, `checkpoint_mount` the path inside the container ('' for the
    same path), `outputs_dir` and `outputs_mount` the same of its outputs, `run_dir` the container's private folder as the
    container sees it, `mounts` its volumes, `environment` the environment to build before its command can run.  Raises Refused
    if variables make its command too long.
    """
    spec, placement = app.spec, sorted(app.joined_as(slot), key=lambda placed: placed.slot)
    command = (spec.resume or spec.command) if app.resume else spec.command
    place = Place(
        app=app_id,
        generation=app.generation,
        spec=spec,
        placement=tuple(placement),
        slot=slot,
        master_port=app.master_port,
        command=tuple(command),
        folder=run_dir,
    )
    launch = engines.prepare(place)
    given = {
        **launch.env,
        **_dorm(app_id, app, placement, slot),
        "DORM_CHECKPOINT_DIR": checkpoint_mount or checkpoint_dir,
        **({"DORM_OUTPUTS": outputs_mount or outputs_dir} if outputs_dir else {}),
        **secrets.variables(spec, run_dir),
        **_volumes(spec, mounts),
        **({"DORM_MEMBERS": f"{run_dir}/{MEMBERS_FILE}"} if app.live else {}),
        **({"DORM_BATCH": f"{run_dir}/{BATCH_FILE}"} if app.batch_size else {}),
        **({"DORM_PYTHON": spec.python} if spec.python.startswith("/") else {}),
    }
    own = {name: text for name, text in {**spec.env, **given}.items() if name.startswith("DORM_")}
    own |= {"DORM_PROGRESS": f"{run_dir}/{PROGRESS_FILE}", **environments.variables(environment)}
    try:
        env = {**_defaults(spec), **launch.defaults, **expanded_env(spec.env, own), **given}
        values = {name: env[name] for name in (*spec.env, *spec.secrets)} | own
        # What an engine adds to a command is not the app's, so only the app's own words are expanded.
        launch = engines.prepare(msgspec.structs.replace(place, command=expanded(command, values)))
    except TooLong as error:
        raise Refused("command", str(error), code=error.code) from None
    return ContainerSpec(
        key=Key(app_id, app.generation, slot),
        image=spec.image,
        command=environments.wrapped(launch.command, environment, run_dir),
        env=env,
        resources=spec.resources(),
        checkpoint_dir=checkpoint_dir,
        grace_s=spec.grace_s,
        stop=f"{spec.stop_signal.signal} {spec.stop_signal.to} {spec.stop_signal.before_s:g}",
        devices=devices,
        files={**launch.files, **environments.files(spec, environment, f"{app_id}-{app.generation}")},
        mounts=(*mounts, *environments.mounts(environment)),
        tenant=app.owner,
        workdir=workdir.hash if (workdir := shipped(spec)) is not None else "",
        outputs_dir=outputs_dir,
    )


def checkpoint_command(spec: AppSpec, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that is run in a container before it is stopped; `variables` are the container's.  Raises
    TooLong."""
    names = own_names(variables) | set(spec.env) | set(spec.secrets)
    return expanded(spec.checkpoint, {name: value for name, value in variables.items() if name in names})


def _volumes(spec: AppSpec, mounts: Sequence[Mount]) -> dict[str, str]:
    """Return the paths of the volumes as the container sees them."""
    variables = {volume.name: volume.variable for volume in volumes_of(spec.volumes)}
    return {variables[mount.name]: mount.target for mount in mounts}


def rank_of(placement: Sequence[Placed], slot: int) -> int:
    return sorted(placed.slot for placed in placement).index(slot)


def _dorm(app_id: str, app: AppPart, placement: Sequence[Placed], slot: int) -> dict[str, str]:
    here = next(placed for placed in placement if placed.slot == slot)
    return {
        "DORM_APP": app_id,
        "DORM_NODE": here.node,
        "DORM_GENERATION": str(app.generation),
        "DORM_SLOT": str(slot),
        "DORM_RANK": str(rank_of(placement, slot)),
        "DORM_WORLD_SIZE": str(len(placement)),
        "DORM_PEERS": ",".join(map(endpoint, placement)),
        "DORM_MASTER_ADDR": placement[0].address,
        "DORM_MASTER_PORT": str(app.master_port),
    }


def _defaults(spec: AppSpec) -> dict[str, str]:
    """Return settings that an app may override.  CPU quotas are invisible from inside, and a library that starts a thread for
    each core of the host then crawls; unbuffered output reaches the logs when it is printed."""
    cores = spec.resources().get(CPU, 0) // 1000
    return {"OMP_NUM_THREADS": str(max(1, cores)), "PYTHONUNBUFFERED": "1"}


# --- ports ------------------------------------------------------------------------------------------------------------


def listens(address: str, port: int) -> bool:
    """Return whether a process on this machine listens there."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            # An address that is not this host's (for example behind NAT) can't be tested.
            return error.errno == errno.EADDRINUSE
    return False


def ports_of(placement: list[Placed], slot: int, master_port: int) -> list[tuple[str, int]]:
    """Return where this slot should listen; the first slot also has the rendezvous port."""
    first = min(placed.slot for placed in placement)
    here = next(placed for placed in placement if placed.slot == slot)
    ports = (here.port, master_port if slot == first else 0)
    return [(here.address, port) for port in ports if port]
