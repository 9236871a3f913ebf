"""The engine `mpi`: Open MPI over the containers of a generation, without ssh.

The first container runs mpirun under `launcher`, the others its daemons under the same program; mpirun's hostfile names each
container by its rank.  The app's command runs `processes` times in each container, with that container's own environment and
limits, and its rank is the container's rank if `processes` is 1.  All output appears in the first container's log.

The names of Open MPI's settings differ between releases: up to 4 `OMPI_MCA_plm_rsh_agent`, from 5 on (PRRTE)
`PRTE_MCA_plm_ssh_agent`.  Both are set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from agents.engines import launcher, launching
from agents.engines.interface import Launch

if TYPE_CHECKING:
    from agents.engines.interface import Place

HOSTFILE: Final = "dorm-hostfile"


def prepare(place: Place) -> Launch:
    processes = place.spec.engine_options.processes
    hostfile = "".join(f"{launcher.HOST_PREFIX}{rank} slots={processes}\n" for rank in range(place.size))
    # Each container has its own words, since variables in them have other values there (`DORM_RANK`).
    words = json.dumps(place.command)
    own = (*_mpirun(place), *launching.RANK, *place.command) if place.rank == 0 else ()
    return Launch(
        launching.command(place, own),
        env={**_agent(place), "DORM_HOSTFILE": place.path(HOSTFILE)},
        defaults=_DEFAULTS,
        files={**launching.FILES, HOSTFILE: hostfile, launcher.COMMAND: words},
    )


def _mpirun(place: Place) -> tuple[str, ...]:
    # Containers have CPU quotas, not cores, so nothing is bound.  The launcher changes to each container's own directory.
    ranks = str(place.size * place.spec.engine_options.processes)
    where = ("--hostfile", place.path(HOSTFILE), "--map-by", "slot", "--bind-to", "none", "--wdir", "/")
    return "mpirun", "-n", ranks, *where


def _agent(place: Place) -> dict[str, str]:
    # Daemons stay children of the launcher, which ends them with the job.
    found = {"OMPI_MCA_orte_leave_session_attached": "1", "PRTE_MCA_prte_leave_session_attached": "1"}
    for family in ("OMPI_MCA_plm_rsh", "PRTE_MCA_plm_ssh"):
        found[f"{family}_agent"] = f"python3 {place.path(launching.LAUNCHER)} agent"
        # Else, beyond 64 containers, daemons would start daemons, with an agent that only the first container has.
        found[f"{family}_no_tree_spawn"] = "1"
        # As many agents wait as there are daemons; mpirun's own limit of 128 would stop it from starting the rest.
        found[f"{family}_num_concurrent"] = str(max(128, place.size))
    return found


_DEFAULTS: Final = {
    # Which user runs a container is the node's to say, not mpirun's.
    **{f"{family}_ALLOW_RUN_AS_ROOT{more}": "1" for family in ("OMPI", "PRTE") for more in ("", "_CONFIRM")},
    "OMPI_MCA_plm": "rsh",
    # Inside containers there is TCP, and shared memory between the processes of one container.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self,vader",
}
