"""`dorm bench scale`: what clusters of some sizes ask of their control plane."""

from __future__ import annotations

from typing import Annotated

import typer

from dorm.cli.bench.report import show_report
from dorm.cli.bench.running import measuring
from dorm.cli.errors import run
from dorm.cli.output import Format, Output
from dorm.cli.program_logs import Verbose


def register(app: typer.Typer) -> None:
    app.command()(scale)


def scale(
    nodes: Annotated[list[int] | None, typer.Option(min=1, max=1_000_000, help="Number of nodes of a cluster; may be repeated. Default: 1000, 10000 and 100000.")] = None,
    apps: Annotated[float, typer.Option(min=0.001, max=100.0, help="Apps per node.")] = 0.5,
    decisions: Annotated[float, typer.Option(min=0.001, max=100.0, help="Decisions per minute for each 1,000 nodes.")] = 6.0,
    quiet_limit: Annotated[float, typer.Option(min=0.1, max=600.0, help="The setting `quiet_limit`, in seconds.")] = 1.0,
    seconds: Annotated[float, typer.Option("--for", min=1.0, max=600.0, help="Duration of the appends, in seconds.")] = 10.0,
    output: Output = Format.table,
    verbose: Verbose = 0,
) -> None:  # fmt: skip
    """Measure the cost of an append, a megabyte sent and a folded record on three local NATS servers, and compute how
    much of each resource clusters of some sizes would use; 1 is full.

    It takes half a minute. The model is arithmetic: docs/scale.md says what it
    leaves out.

    [bold]Examples[/]

      dorm bench scale

      dorm bench scale --nodes 5000 --apps 2 --decisions 30 -o json
    """
    from dorm_lab.bench.scale.measuring import bench_scale
    from dorm_lab.bench.scale.model import Cluster

    clusters = [
        Cluster(
            nodes=count,
            apps=max(1, round(count * apps)),
            decisions_per_s=decisions * count / 1000 / 60,
            quiet_limit_s=quiet_limit,
        )
        for count in nodes or [1_000, 10_000, 100_000]
    ]
    with measuring("scale", verbose) as progress:
        report = run(bench_scale(clusters, seconds=seconds, progress=progress))
    show_report(report, output)
