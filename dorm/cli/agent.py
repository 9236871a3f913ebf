"""`dorm agent`: one node's agent, connected to existing NATS servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from agents.config import (
    DEFAULT_PORTS,
    HEALTH_EVERY_S,
    HEALTH_TIMEOUT_S,
    LONGEST_HEALTH_S,
    ConfigError,
    NodeConfig,
    check_folder,
)
from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import WrongUsage
from dorm.cli.options import Metrics, metrics_address
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.settings import VolumeOption, parse_bytes, parse_capacity, parse_pairs, parse_ports, volumes_of_option
from dorm.cli.signals import run_service
from dorm.cli.trust import node_target, read_introduction
from dorm.cli.up import RuntimeChoice
from dorm.local.home import home
from events.addresses import is_loopback
from events.quantities import GPU
from events.runtimes import RUNTIMES

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from agents.agent import Agent
    from agents.machine import Detected
    from dorm.health.checks import Health
    from dorm.metrics.address import Address


class FirewallChoice(StrEnum):
    """What to do with the node's firewall rules."""

    on = "on"
    off = "off"


@command(before="verbose")
async def agent(
    cx: Cluster,
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
        typer.Option(
            help="Resources for apps, such as cpu=8,memory=32GiB,gpu=2; default: what this machine, its control groups "
            "and CPU sets allow."
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            help="A GPU for apps, by its UUID (nvidia-smi -L) or its index, which is looked up once; may be repeated.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Address at which other nodes reach this one; default: the one from which it reaches the NATS server."
        ),
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
    health_program: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Program that says whether this node is fit: while it ends with another exit code than 0, the node takes "
            "nothing new, and the first line of its output is the reason. It runs at the start, at intervals, and before "
            "the node returns after it was cut off.",
        ),
    ] = None,
    health_every: Annotated[
        float, typer.Option(min=0.1, max=LONGEST_HEALTH_S, help="Seconds between two runs of the health program.")
    ] = HEALTH_EVERY_S,
    health_timeout: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=LONGEST_HEALTH_S,
            help="Seconds after which the health program is killed, and counts as failed.",
        ),
    ] = HEALTH_TIMEOUT_S,
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

      dorm agent --health-program /etc/dorm/healthy --health-every 300

      dorm agent --name gpu-7 --capacity cpu=32,memory=256GiB --gpu 0 --gpu 1 --label gpu_type=h100
    """
    from agents.environment import detect_pythons
    from agents.gpus import check_given, nvidia_cards
    from agents.machine import detect
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
    chosen = parse_capacity(capacity)
    provisional = chosen or detect().capacity  # Until the runtime is known.
    try:
        check_folder(root)
        given = NodeConfig(
            name=node,
            address=address or "",
            capacity={**provisional, **({"gpu": len(gpu)} if gpu else {})},
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
            health_program=_program(health_program),
            health_every_s=health_every,
            health_timeout_s=health_timeout,
            volumes=volumes_of_option(volume),
            pythons=detect_pythons(),
        )
        check_given(given.gpus, nvidia_cards)
    except ConfigError as error:
        raise WrongUsage.of(error) from None

    health = Health(BUILD, f"node {node} waits for the NATS servers")

    async def work() -> None:
        from agents.agent import Agent

        target = await node_target(cx.target(), root, node, introduction)
        cluster_name = target.cluster
        choice = await choose_runtime(runtime.value, docker, trust_apps=trust_apps)
        if firewall is not None:
            await _firewall(firewall is FirewallChoice.on, given, choice.name, target.url)
        connection = await target.connection(f"dorm-agent-{node}", create=True, patient=True)
        try:
            detected = await asyncio.to_thread(choice.detect) if chosen is None else None
            config = await asyncio.to_thread(_completed, given, detected, target.url)
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
                cards=nvidia_cards,
                detected=detected.text if detected is not None else "",
            )
            health.watch(agents_checks([worker]))
            async with _metrics(worker, serve_at, health):
                await worker.run()
        finally:
            await connection.close()

    await run_service(work(), health)


def _completed(given: NodeConfig, detected: Detected | None, servers: str) -> NodeConfig:
    """Add what is detected, and say it, once the NATS servers are reached.  Blocks.  Raises ConfigError."""
    import structlog

    from agents.machine import detect_address

    log = structlog.get_logger(__name__)
    capacity, address = given.capacity, given.address
    if detected is not None:
        capacity = {**detected.capacity, **({GPU: len(given.gpus)} if given.gpus else {})}
        log.info("capacity detected", node=given.name, reason=detected.text)
    if not address:
        own = detect_address(servers)
        address = own.address
        say = log.warning if is_loopback(address) else log.info
        say("address detected", node=given.name, address=address, reason=own.text)
    return msgspec.structs.replace(given, capacity=capacity, address=address)


def _program(path: Path | None) -> Path | None:
    """Return the health program by its absolute path.  Raises WrongUsage if it can't be one."""
    if path is None:
        return None
    if not path.is_file() or not os.access(path, os.X_OK):
        text = f"--health-program: {path} is not a program that can be started; make it executable (chmod +x)"
        raise WrongUsage(text, code="agent.health_program.not_executable")
    return path.absolute()


async def _firewall(wanted: bool, config: NodeConfig, runtime: str, urls: str) -> None:
    """Set or remove the node's firewall rules, before any container starts.  Raises WrongUsage, FirewallError."""
    from agents.runtime.docker import firewall

    if not wanted:
        await firewall.remove_rules(config.name)
        return
    if not RUNTIMES[runtime].firewall:
        text = f"--firewall on confines Docker containers, and this node runs {RUNTIMES[runtime].words}"
        raise WrongUsage(text, code="firewall.not_docker")
    if config.container_user is not None or any(freedom.endswith("shared-user") for freedom in config.allow):
        text = "--firewall on needs a user for each tenant: leave out --container-user and the freedom shared-user"
        raise WrongUsage(text, code="firewall.shared_user")
    await firewall.set_rules(config.name, firewall.ports_of(urls))


def _metrics(worker: Agent, address: Address | None, health: Health) -> AbstractAsyncContextManager[None]:
    if address is None:
        return contextlib.nullcontext()
    from dorm.metrics.server import MetricsServer, of_agents, serving

    return serving(MetricsServer(address, [of_agents([worker])], health=health), None, None)
