"""Jobs and clusters for tests of OASiS: short ways to write them by hand, and a strategy for tiny ones."""

from __future__ import annotations

from hypothesis import strategies as st

from dorm.policies.problem import Utility
from dorm_lab.policies.oasis.model import Cluster, Job


def job(
    name: str,
    work: int,
    chunks: int,
    *,
    arrival: int = 0,
    worth: float = 8.0,
    decay: float = 0.0,
    target: float = 0.0,
    worker: tuple[float, ...] = (1.0,),
    server: tuple[float, ...] = (1.0,),
    bandwidths: tuple[int, int] = (1, 4),
) -> Job:
    """`work` mini-batches, each of which takes a worker one slot of one second, on `chunks` workers at most."""
    return Job(
        id=name,
        arrival=arrival,
        epochs=1,
        chunks=chunks,
        mini_batches=1,
        mini_batch_s=work / chunks,
        gradient=0.0,
        worker_bandwidth=bandwidths[0],
        server_bandwidth=bandwidths[1],
        worker=worker,
        server=server,
        utility=Utility(worth, decay, target),
    )


def cluster(workers: list[float], servers: list[float], slots: int) -> Cluster:
    """One kind of resource, slots of a second."""
    return Cluster(tuple((one,) for one in workers), tuple((one,) for one in servers), slots, slot_s=1.0)


@st.composite
def instances(draw: st.DrawFn, most_jobs: int = 4) -> tuple[Cluster, list[Job]]:
    """At most three machines for workers and two for parameter servers, two kinds of resources, five slots."""

    def amounts(values: list[float]) -> st.SearchStrategy[tuple[float, ...]]:
        return st.tuples(st.sampled_from(values), st.sampled_from(values))

    slots = draw(st.integers(2, 5))
    machines = draw(st.lists(amounts([2.0, 4.0, 6.0]), min_size=1, max_size=3))
    servers = draw(st.lists(amounts([2.0, 4.0]), min_size=1, max_size=2))
    jobs = []
    for number in range(draw(st.integers(1, most_jobs))):
        chunks = draw(st.integers(1, 3))
        jobs.append(
            job(
                f"job-{number}",
                draw(st.integers(1, 7)),
                chunks,
                arrival=draw(st.integers(0, slots - 1)),
                worth=draw(st.sampled_from([1.0, 5.0, 20.0, 100.0])),
                decay=draw(st.sampled_from([0.0, 0.5, 4.0])),
                target=draw(st.sampled_from([0.0, 2.0, 4.0])),
                worker=draw(amounts([1.0, 2.0])),
                server=draw(amounts([1.0, 2.0])),
                bandwidths=draw(st.sampled_from([(1, 1), (1, 2), (2, 3), (1, 10)])),
            )
        )
    return Cluster(tuple(machines), tuple(servers), slots, slot_s=1.0), jobs
