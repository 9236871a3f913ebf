"""`dorm agent`: one node's agent, connected to an existing NATS server."""

from __future__ import annotations

import contextlib
import socket
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agents.config import DEFAULT_PORTS, ConfigError, NodeConfig, detect_address, detect_capacity
from agents.environment.pythons import detect_pythons
from dorm.cli.cluster.up import RuntimeChoice
from dorm.cli.connect import ClusterName, Url, names_credentials, target
from dorm.cli.errors import WrongUsage, run
from dorm.cli.metrics_address import Metrics, metrics_address
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.service import run_service
from dorm.cli.settings import VolumeOption, parse_bytes, parse_capacity, parse_pairs, parse_ports, volumes_of_option
from dorm.cli.trust.joining import node_target, read_introduction
from dorm.local.home import home

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from agents.agent import Agent
    from dorm.health.checks import Health
    from dorm.metrics.address import Address


class FirewallChoice(StrEnum):
    """What to do with the node's firewall rules."""

    on = "on"
    off = "off"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Nodes and the cluster")(agent)


def agent(
    name: Annotated[str | None, typer.Option(help="Name of the node; default: the host's.")] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            help="Folder for apps' checkpoints that all nodes share (on NFS, for example). A marker in it "
            "identifies it: a node on which it is not mounted gets no containers."
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(help="Resources for apps, such as cpu=8,memory=32GiB,gpu=2; default: all of this machine's."),
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option("--gpu", help="Id of a GPU for apps; may be repeated.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Address at which other nodes reach this one; default: detected.")
    ] = None,
    ports: Annotated[
        str, typer.Option(help="Ports for apps; agents on the same address need disjoint ranges.")
    ] = f"{DEFAULT_PORTS[0]}-{DEFAULT_PORTS[1]}",
    runtime: Annotated[RuntimeChoice, typer.Option(help="auto uses Docker if an engine answers.")] = RuntimeChoice.auto,
    docker: Annotated[str | None, typer.Option(envvar="DOCKER_HOST", help="Docker engine.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Label of the node, key=value; may be repeated.")] = None,
    data: Annotated[Path | None, typer.Option(envvar="DORM_DATA", help="Folder of this node's own files.")] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="Folder of the secrets that specs name, as FOLDER/USER/NAME; mode 0700.")
    ] = None,
    volume: VolumeOption = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TENANT:]FREEDOM",
            help="Relax Docker containers' confinement on this node, for one tenant or all: writable-root, shared-user "
            "or core-dumps; may be repeated.",
        ),
    ] = None,
    allow_image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Image that Docker containers may use, such as registry.lab/** or python@sha256:...; may "
            "be repeated; default: any.",
        ),
    ] = None,
    trust_apps: Annotated[
        bool,
        typer.Option(
            "--trust-apps",
            help="Run plain processes of several tenants, which can read each other's files and the agent's key.",
        ),
    ] = False,
    container_disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most that a Docker container may write to this node's disk before it is stopped; default: 32GiB.",
        ),
    ] = None,
    container_user: Annotated[
        str | None,
        typer.Option(
            metavar="UID:GID",
            help="User of all Docker containers; default: one for each tenant, or the agent's own if it is not root.",
        ),
    ] = None,
    firewall: Annotated[
        FirewallChoice | None,
        typer.Option(
            help="on: block Docker containers' access to the NATS servers, Docker engines on TCP and a "
            "cloud's metadata address, with iptables, as root; the rules stay when the agent ends. "
            "off: remove them. Default: no change.",
        ),
    ] = None,
    report_every: Annotated[float, typer.Option(min=0.1, help="Seconds between heartbeats.")] = 5.0,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File with the token of `dorm node intro`, for the first start; - reads it from standard input. "
            "DORM_TOKEN may hold the token itself.",
        ),
    ] = None,
    metrics: Metrics = None,
    url: Url = None,
    cluster: ClusterName = None,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Run a node's agent, which starts and stops containers as the log says.

    Containers keep running when the agent stops, and the next agent adopts them.
    If no agent comes back within the node's lease (node_lease, five minutes by
    default), or the log cannot be reached for that time, the containers are
    killed, so that their apps can continue elsewhere. The agent waits for NATS
    servers that do not answer yet. It ends on Ctrl-C, on SIGTERM, or when its
    terminal is closed.

    The folder (--data) identifies the node, not its name: another machine with
    the same name waits until the lease has expired.

    [bold]Examples[/]

      dorm agent --url nats://10.0.0.1:4222 --cluster lab --checkpoints /mnt/shared/dorm

      dorm agent --cluster lab --metrics 0.0.0.0:9475

      dorm agent --token token.txt --checkpoints /mnt/shared/dorm --firewall on

      dorm agent --volume datasets=/data --volume scratch=/mnt/scratch:rw:vision

      dorm agent --name gpu-7 --capacity cpu=32,memory=256GiB --gpu 0 --gpu 1 --label gpu_type=h100
    """
    from dorm.health.checks import Health
    from dorm.health.parts import agents_checks
    from dorm.local.announced import BUILD
    from dorm.local.runtimes import choose_runtime

    configure(verbose, log_json)
    serve_at = metrics_address(metrics)
    introduction = read_introduction(token)
    node = name or (introduction.node if introduction else "") or socket.gethostname().split(".")[0]
    root = (data or home() / "nodes" / node).absolute()
    shared = (checkpoints or home() / "checkpoints").absolute()
    found = parse_capacity(capacity) or detect_capacity()
    try:
        config = NodeConfig(
            name=node,
            address=address or detect_address(),
            capacity={**found, **({"gpu": len(gpu)} if gpu else {})},
            checkpoints=shared,
            ports=parse_ports(ports),
            labels=parse_pairs(label, "label"),
            gpus=tuple(gpu or []),
            report_interval_s=report_every,
            secrets=secrets.absolute() if secrets is not None else None,
            allow=tuple(allow or []),
            images=tuple(allow_image or []),
            trust_apps=trust_apps,
            container_disk=parse_bytes(container_disk),
            container_user=container_user,
            volumes=volumes_of_option(volume),
            pythons=detect_pythons(),
        )
    except ConfigError as error:
        raise WrongUsage.of(error) from None

    health = Health(BUILD, f"node {node} waits for the NATS servers")

    async def work() -> None:
        from agents.agent import Agent

        found = await node_target(target(url, cluster), root, node, introduction, named=names_credentials())
        cluster_name = found.cluster
        choice = await choose_runtime(runtime.value, docker, trust_apps=trust_apps)
        if firewall is not None:
            await _firewall(firewall is FirewallChoice.on, config, choice.name, found.url)
        connection = await found.connection(f"dorm-agent-{node}", create=True, patient=True)
        try:
            runs = choice.make(config, cluster_name, root, shared)
            worker = Agent(
                connection.log,
                connection.bus,
                cluster_name,
                config,
                runs,
                root=root,
                clock=time.time_ns,
                build=BUILD,
            )
            health.watch(agents_checks([worker]))
            async with _metrics(worker, serve_at, health):
                await worker.run()
        finally:
            await connection.close()

    run(run_service(work(), health))


async def _firewall(wanted: bool, config: NodeConfig, runtime: str, urls: str) -> None:
    """Set or remove the node's firewall rules, before any container starts.  Raises WrongUsage, FirewallError."""
    from agents.runtime.docker import firewall

    if not wanted:
        await firewall.remove_rules(config.name)
        return
    if runtime != "docker":
        text = "--firewall on confines Docker containers, and this node runs plain processes"
        raise WrongUsage(text, code="firewall.not_docker")
    if config.container_user is not None or any(one.endswith("shared-user") for one in config.allow):
        text = "--firewall on needs a user for each tenant: leave out --container-user and the freedom shared-user"
        raise WrongUsage(text, code="firewall.shared_user")
    await firewall.set_rules(config.name, firewall.ports_of(urls))


def _metrics(worker: Agent, address: Address | None, health: Health) -> AbstractAsyncContextManager[None]:
    if address is None:
        return contextlib.nullcontext()
    from dorm.metrics.parts import of_agents
    from dorm.metrics.server import MetricsServer, serving

    return serving(MetricsServer(address, [of_agents([worker])], health=health), None, None)
