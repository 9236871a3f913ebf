"""What each kind of app finds in its containers: pure functions from spec and placement to environment, files and command.

An engine is a pure function `prepare(place) -> Launch`.  It reads no clock, no file and no environment, so a container
gets the same launch from an agent that was restarted, and tests need no cluster.  A role, a rank or a hostfile follows
from the placement in the log, so every agent computes the same and the master knows nothing of engines.

*plain*: the command as it is.  The contract's own variables contain everything that a worker needs.

*elastic*: the same, and a file that announces the members of the generation.  `DORM_MEMBERS` names the file.  A
program that follows it learns all changes from there and needs no other variable.  At the start of a generation the
membership is 1 and holds every container of the placement.  For an app that is adjusted by checkpoint and restart the
file never changes: each generation has a new one.  With `elastic: live` the agent replaces it (`agents.reconcile`).

*torchrun*: PyTorch's own launcher, or the variables that it would set.  With one process in each container and a
static rendezvous no launcher is needed: the variables alone make the container a worker (PyTorch, "torchrun:
environment variables").  It sees only its own devices, so its local rank is 0, even if a gang puts several containers
on one node.

With several processes in a container, or with the rendezvous `c10d`, the container runs torchrun around the command.
The rendezvous `c10d` lets torchrun start all workers again after one of them failed, up to `restarts` times, without a
new generation; its ranks need not be the containers' ranks.

*mpi*: Open MPI over the containers of a generation, without ssh.  The first container runs mpirun under `launcher`,
the others its daemons under the same program; mpirun's hostfile names each container by its rank.  The app's command
runs `processes` times in each container, with that container's own environment and limits, and its rank is the
container's rank if `processes` is 1.  All output appears in the first container's log.

The names of Open MPI's settings differ between releases: up to 4 `OMPI_MCA_plm_rsh_agent`, from 5 on (PRRTE)
`PRTE_MCA_plm_ssh_agent`.  Both are set.

*Parameter servers*, for `ps` and `tensorflow`.  The number of servers follows from the spec and the size of the
partition, so a resize keeps the ratio.  The first container is always a worker: it leads, and the rendezvous port is
at its address.  Servers carry the traffic of all workers; therefore they go to different nodes first.

*ps*: the variables of DMLC's tracker, as ps-lite and MXNet read them.  `DMLC_ROLE` is `server` or `worker`;
`DMLC_NODE_HOST` and `PORT` make ps-lite listen where Dorm has reserved a port.  ps-lite also wants a scheduler, a
small process that only introduces the others.  With `scheduler: true` the first container runs the command a second
time as that, as DMLC's tracker does; the container ends with its server or worker.

Programs without ps-lite find the servers in `DORM_SERVERS` and the workers in `DORM_WORKERS`, as `host:port` by
number, and their own number in `DORM_ROLE_RANK`.

*tensorflow*: TF_CONFIG, as TensorFlow's TFConfigClusterResolver reads it.  Without servers every container is a
`worker`, as MultiWorkerMirroredStrategy wants it; worker 0 is the chief by convention.  With servers there are `ps`
tasks, and the first container is the `chief`, which coordinates a ParameterServerStrategy.  The others run a
`tf.distribute.Server`, which never ends, so the launcher ends them with the chief: the app is complete when the chief
is done.  A request to stop reaches the chief alone, which needs the servers to save their parameters.

`prepare` at the end has all engines by the name that a spec gives.  Imports `events` alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agents import engine_launcher
from events.addresses import joined
from events.kinds import Placed
from events.spec import AppSpec, server_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from events.spec import EngineName


# --- interface --------------------------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """One container's place in a generation of its app."""

    app: str
    generation: int
    spec: AppSpec
    placement: tuple[Placed, ...]
    """All containers of the generation, by slot."""
    slot: int
    """Slot of this container."""
    master_port: int
    """A free port at the first container's address."""
    command: tuple[str, ...]
    """The app's own command: to start, or to resume."""
    folder: str
    """The container's private folder as the container sees it; it holds the files of the launch."""

    @property
    def rank(self) -> int:
        """Return the container's position among the slots."""
        return next(rank for rank, placed in enumerate(self.placement) if placed.slot == self.slot)

    @property
    def own(self) -> Placed:
        return self.placement[self.rank]

    @property
    def size(self) -> int:
        """Return the number of containers."""
        return len(self.placement)

    @property
    def master_address(self) -> str:
        return self.placement[0].address

    def path(self, name: str) -> str:
        """Return the path of one of the launch's files."""
        return f"{self.folder}/{name}"


class Launch(msgspec.Struct, frozen=True):
    """Additions of an engine to a container."""

    command: tuple[str, ...]
    env: dict[str, str] = {}
    """Variables that the app cannot replace: they name places and ports."""
    defaults: dict[str, str] = {}
    """Variables that the app's own `env` replaces."""
    files: dict[str, str] = {}
    """Text of files in the container's private folder, by name; each begins with `dorm-`, because the app's own files
    are there too."""


def endpoint(placed: Placed) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return joined(placed.address, placed.port)


# --- the launcher -----------------------------------------------------------------------------------------------------

LAUNCHER: Final = "dorm-launcher.py"
FILES: Final = {LAUNCHER: Path(engine_launcher.__file__).read_text()}
"""The launcher's source, read once when the agent starts."""
RANK: Final = ("/bin/sh", "-c", f'exec python3 "${engine_launcher.FOLDER}/{LAUNCHER}" rank "$@"', "sh")
"""Goes before a command that is asked to stop by SIGTERM.  Each container has the launcher in a folder of its own."""


def command(place: Place, own: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command of a container: the first one leads with its `own`, the others follow it, with or without one."""
    python = ("python3", place.path(LAUNCHER))
    where = (place.master_address, str(place.master_port))
    if place.rank == 0:
        return *python, "head", *where, str(place.size), *own
    return *python, "worker", *where, str(place.rank), *own


# --- parameter servers ------------------------------------------------------------------------------------------------


def servers_and_workers(place: Place) -> tuple[tuple[Placed, ...], tuple[Placed, ...]]:
    """Return the servers and the workers, each by slot."""
    wanted = server_count(place.spec.engine, place.spec.engine_options, place.size)
    # A spec is checked, but a launch has to be right for any: one container is left as a worker.
    chosen = _spread(place.placement, min(wanted, place.size - 1))
    servers = tuple(placed for placed in place.placement if placed.slot in chosen)
    return servers, tuple(placed for placed in place.placement if placed.slot not in chosen)


def _spread(placement: Sequence[Placed], count: int) -> list[int]:
    """Return the slots of `count` containers, never the first one: one on each node, then a second on each, and so on."""
    turns: dict[str, int] = {}
    order: list[tuple[int, int]] = []
    for placed in placement:
        turn = turns.get(placed.node, 0)
        turns[placed.node] = turn + 1
        order.append((turn, placed.slot))
    return [slot for _, slot in sorted(order[1:])[:count]]


# --- plain ------------------------------------------------------------------------------------------------------------


def prepare_plain(place: Place) -> Launch:
    return Launch(place.command)


# --- elastic ----------------------------------------------------------------------------------------------------------

MEMBERS_FILE: Final = "dorm-members.json"
_DEADLINE_S: Final = 60.0
"""Seconds for members to follow an announcement."""


class Member(msgspec.Struct, frozen=True):
    slot: int
    host: str
    port: int


class Announcement(msgspec.Struct, frozen=True):
    """The whole target membership, by slot.  A slot that is missing leaves; readers accept fields that they do not know."""

    generation: int
    membership: int
    deadline_s: float
    """Seconds from the announcement within which the membership has to train."""
    members: list[Member]
    founders: list[int]
    """Slots of the generation's first membership.  Only they may begin the job; all others join a membership that may
    be under way."""


def announcement(
    generation: int, membership: int, deadline_s: float, placement: Iterable[Placed], founders: list[int] | None = None
) -> bytes:
    """Return the content of the file; without `founders`, all members are."""
    ordered = sorted(placement, key=lambda placed: placed.slot)
    members = [Member(slot=member.slot, host=member.address, port=member.port) for member in ordered]
    first = [member.slot for member in ordered] if founders is None else founders
    return msgspec.json.encode(Announcement(generation, membership, deadline_s, members, first)) + b"\n"


def prepare_elastic(place: Place) -> Launch:
    if place.spec.elastic == "live":
        return Launch(place.command)  # The agent announces each membership, the first one too.
    announced = announcement(place.generation, 1, _DEADLINE_S, place.placement)
    return Launch(
        place.command,
        env={"DORM_MEMBERS": place.path(MEMBERS_FILE)},
        files={MEMBERS_FILE: announced.decode()},
    )


# --- torchrun ---------------------------------------------------------------------------------------------------------

_PYTHON: Final = re.compile(r"(.*/)?python(\d+(\.\d+)?)?")


def prepare_torchrun(place: Place) -> Launch:
    options = place.spec.engine_options
    if options.rendezvous == "c10d":
        return _launcher(place, *_c10d(place))
    if options.processes > 1:
        return _launcher(place, *_static(place))
    return Launch(place.command, env={**_shared(place), **_worker(place)})


def _shared(place: Place) -> dict[str, str]:
    return {"MASTER_ADDR": place.master_address, "MASTER_PORT": str(place.master_port)}


def _worker(place: Place) -> dict[str, str]:
    rank, size = str(place.rank), str(place.size)
    return {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": rank,
        "GROUP_WORLD_SIZE": size,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RESTART_COUNT": str(place.generation - 1),
        "TORCHELASTIC_RUN_ID": place.app,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def _launcher(place: Place, *rendezvous: str) -> Launch:
    """Run torchrun around the command; it sets the workers' variables itself.

    If the command names an interpreter, that one runs torchrun's module: it has PyTorch.  A script `torchrun` may be
    missing, or name the interpreter of the machine that installed it."""
    first = place.command[0]
    torchrun = (first, "-m", "torch.distributed.run") if _PYTHON.fullmatch(first) else ("torchrun",)
    common = (*torchrun, "--nnodes", str(place.size), "--nproc-per-node", str(place.spec.engine_options.processes))
    return Launch((*common, *rendezvous, "--no-python", *place.command))


def _static(place: Place) -> tuple[str, ...]:
    where = ("--master-addr", place.master_address, "--master-port", str(place.master_port))
    return "--node-rank", str(place.rank), *where, "--rdzv-id", place.app


def _c10d(place: Place) -> tuple[str, ...]:
    # Named by the generation, so that a straggler of the previous one can't join.  Containers of one node share an
    # address, and torchrun would guess from it who hosts the store.
    return (
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", joined(place.master_address, place.master_port)),
        *("--rdzv-id", f"{place.app}-{place.generation}", "--rdzv-conf", f"is_host={int(place.rank == 0)}"),
        *("--local-addr", place.own.address, "--max-restarts", str(place.spec.engine_options.restarts)),
    )


# --- mpi --------------------------------------------------------------------------------------------------------------

HOSTFILE: Final = "dorm-hostfile"


def prepare_mpi(place: Place) -> Launch:
    processes = place.spec.engine_options.processes
    hostfile = "".join(f"{engine_launcher.HOST_PREFIX}{rank} slots={processes}\n" for rank in range(place.size))
    # Each container has its own words, since variables in them have other values there (`DORM_RANK`).
    job = json.dumps(place.command)
    own = (*_mpirun(place), *RANK, *place.command) if place.rank == 0 else ()
    return Launch(
        command(place, own),
        env={**_agent(place), "DORM_HOSTFILE": place.path(HOSTFILE)},
        defaults=_DEFAULTS,
        files={**FILES, HOSTFILE: hostfile, engine_launcher.COMMAND: job},
    )


def _mpirun(place: Place) -> tuple[str, ...]:
    # Containers have CPU quotas, not cores, so nothing is bound.  The launcher changes to each container's own directory.
    ranks = str(place.size * place.spec.engine_options.processes)
    where = ("--hostfile", place.path(HOSTFILE), "--map-by", "slot", "--bind-to", "none", "--wdir", "/")
    return "mpirun", "-n", ranks, *where


def _agent(place: Place) -> dict[str, str]:
    # Daemons stay children of the launcher, which ends them with the job.
    variables = {"OMPI_MCA_orte_leave_session_attached": "1", "PRTE_MCA_prte_leave_session_attached": "1"}
    for family in ("OMPI_MCA_plm_rsh", "PRTE_MCA_plm_ssh"):
        variables[f"{family}_agent"] = f"python3 {place.path(LAUNCHER)} agent"
        # Else, beyond 64 containers, daemons would start daemons, with an agent that only the first container has.
        variables[f"{family}_no_tree_spawn"] = "1"
        # As many agents wait as there are daemons; mpirun's own limit of 128 would stop it from starting the rest.
        variables[f"{family}_num_concurrent"] = str(max(128, place.size))
    return variables


_DEFAULTS: Final = {
    # Which user runs a container is the node's to say, not mpirun's.
    **{f"{family}_ALLOW_RUN_AS_ROOT{more}": "1" for family in ("OMPI", "PRTE") for more in ("", "_CONFIRM")},
    "OMPI_MCA_plm": "rsh",
    # Inside containers there is TCP, and shared memory between the processes of one container.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self,vader",
}


# --- ps ---------------------------------------------------------------------------------------------------------------

_BESIDE: Final = 'DMLC_ROLE=scheduler "$@" & exec "$@"'
"""Signals reach the whole process group, so the scheduler stops with its container."""


def prepare_ps(place: Place) -> Launch:
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


# --- tensorflow -------------------------------------------------------------------------------------------------------


def prepare_tensorflow(place: Place) -> Launch:
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
    own = (*RANK, *place.command) if place.rank == 0 else place.command
    return Launch(command(place, own), env=env, files=FILES)


# --- by name ----------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Engine: TypeAlias = Callable[[Place], Launch]

_ENGINES: Final[dict[EngineName, Engine]] = {
    "plain": prepare_plain,
    "torchrun": prepare_torchrun,
    "mpi": prepare_mpi,
    "tensorflow": prepare_tensorflow,
    "ps": prepare_ps,
    "elastic": prepare_elastic,
}


def prepare(place: Place) -> Launch:
    """Return the additions of the spec's engine to a container."""
    return _ENGINES[place.spec.engine](place)
