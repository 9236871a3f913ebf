"""The engine `torchrun`: PyTorch's own launcher, or the variables that it would set.

With one process in each container and a static rendezvous no launcher is needed: the variables alone make the container a
worker (PyTorch, "torchrun: environment variables").  It sees only its own devices, so its local rank is 0, even if a gang puts
several containers on one node.

With several processes in a container, or with the rendezvous `c10d`, the container runs torchrun around the command.  The
rendezvous `c10d` lets torchrun start all workers again after one of them failed, up to `restarts` times, without a new
generation; its ranks need not be the containers' ranks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agents.engines.interface import Launch
from events.addresses import joined

if TYPE_CHECKING:
    from agents.engines.interface import Place

_PYTHON: Final = re.compile(r"(.*/)?python(\d+(\.\d+)?)?")


def prepare(place: Place) -> Launch:
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
