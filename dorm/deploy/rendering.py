"""The files of one machine, from the settings and the templates in `compose/deploy`, and what the machine lacks for them.

A template is the file itself, with `{{name}}` where a value goes; a line that only holds an empty value is left out.
Rendering is pure: text in, text out.  What a machine lacks is checked before any file is written: a unit with a wrong path
fails later, and says little.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import compose
from dorm.deploy import layout
from dorm.deploy.settings import DeploymentError
from dorm.security.quoting import quoted
from events.addresses import is_loopback
from events.quantities import MEMORY, resource, short
from events.runtimes import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.deploy.settings import Archives, Deployment, Node


# --- rendering --------------------------------------------------------------------------------------------------------

TEMPLATES = Path(compose.__file__).parent / "deploy"
_HOLE = re.compile(r"\{\{(\w+)\}\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+")


class File(NamedTuple):
    """A file of a machine."""

    path: str
    content: bytes
    mode: int = 0o644

    @property
    def secret(self) -> bool:
        return not self.mode & 0o004


class Part(NamedTuple):
    """A part of the cluster that a machine has: the units to enable for it."""

    name: str
    units: tuple[str, ...]


def parts(settings: Deployment, machine: str) -> list[Part]:
    """Return the parts of a machine, in the order in which to start them.  Raises DeploymentError if it has none."""
    if not settings.knows(machine):
        raise DeploymentError(
            f"{short(machine)} is neither a machine of the cluster nor matched by a pattern of nodes; name one with --machine",
            code="deploy.machine.unknown",
        )
    reload = ("dorm-nats-reload.path", "dorm-nats-renewed.path") if settings.trust else ()
    candidates = [
        Part("NATS server", ("dorm-nats.service", *reload)) if machine in settings.servers else None,
        Part("master", ("dorm-master.service",)) if machine in settings.leading else None,
        Part("API", ("dorm-api.service",)) if machine in settings.api else None,
        Part("node", ("dorm-agent.service",)) if settings.node(machine) is not None else None,
        Part("webhooks", ("dorm-webhooks.service",)) if machine in settings.webhooks.machines else None,
        Part("backup", ("dorm-backup.timer",)) if machine in settings.backup.machines else None,
    ]
    return [part for part in candidates if part is not None]


def rendered(settings: Deployment, machine: str) -> list[File]:
    """Return the files of a machine, without its keys.  Raises DeploymentError."""
    named = {part.name for part in parts(settings, machine)}
    files = [
        _file(layout.SYSUSERS, "sysusers.conf"),
        _file(layout.TMPFILES, "tmpfiles.conf", cluster=settings.cluster, folders=_folders(settings, named)),
    ]
    if "NATS server" in named:
        files += _server(settings, machine)
    if "master" in named:
        # A master writes archives; the API and the backup read them.
        command, mounts = _master(settings, machine), _words(layout.MASTER, settings.archives.folder)
        files.append(_unit("dorm-master.service", settings, command=command, mounts=mounts))
    if "API" in named:
        command, mounts = _api(settings, machine), _words(layout.API, settings.archives.folder)
        files.append(_unit("dorm-api.service", settings, command=command, mounts=mounts))
    if "webhooks" in named:
        command, mounts = _webhooks(settings, machine), _words(layout.WEBHOOKS, settings.archives.folder)
        files.append(_unit("dorm-webhooks.service", settings, command=command, mounts=mounts))
    if "backup" in named:
        files += [
            _unit(
                "dorm-backup.service",
                settings,
                command=_backup(settings, machine),
                backups=_words(settings.backup.folder, settings.archives.folder),
                writes=_words(settings.backup.folder, settings.backup.metrics),
            ),
            _unit("dorm-backup.timer", settings, every=settings.backup.every),
        ]
    node = settings.node(machine)
    if node is not None:
        files.append(_agent(settings, machine, node))
    return files


def _file(path: str, template: str, **values: str) -> File:
    return File(path, fill((TEMPLATES / f"{template}.in").read_text(), values).encode())


def _unit(name: str, settings: Deployment, **values: str) -> File:
    hardening = (TEMPLATES / "hardening.in").read_text().strip()
    environment = f"EnvironmentFile={settings.archives.environment}" if settings.archives.environment else ""
    owned = f"ExecStartPre=+/bin/chown -h dorm:dorm {' '.join(_secrets(name))}" if settings.trust else ""
    return _file(
        f"{layout.UNITS}/{name}",
        name,
        cluster=settings.cluster,
        hardening=hardening,
        environment=environment,
        owned=owned,
        **values,
    )


def _secrets(unit: str) -> list[str]:
    """Return the keys that a unit reads.  Root writes them, and systemd-tmpfiles does not give root's files in another user's
    folder to that user, so the unit does."""
    part = {"nats": "NATS server", "api": "API"}
    name = unit.removeprefix("dorm-").removesuffix(".service")
    folder, names = layout.SECRETS.get(part.get(name, name), ("", ()))
    return [f"{folder}/{name}" for name in names]


def _words(*paths: str | None) -> str:
    """Return a list of paths, as units and tmpfiles.d have it."""
    return " ".join(_quoted(_specified(path)) for path in paths if path)


def _specified(text: str) -> str:
    """Return text without specifiers (systemd.unit(5)), which all values of units may hold."""
    return text.replace("%", "%%")


def fill(template: str, values: dict[str, str]) -> str:
    """Return a template with its values.  Raises KeyError for a value that is not given."""
    lines = []
    for line in template.splitlines():
        whole = _HOLE.fullmatch(line)
        if whole is not None and not values[whole[1]]:
            continue
        lines.append(_HOLE.sub(lambda hole: values[hole[1]], line))
    return "\n".join(lines).rstrip("\n") + "\n"


def command_line(command: Sequence[str]) -> str:
    """Return a command for a unit's `ExecStart=` (systemd.service(5)), with specifiers and variables escaped."""
    return " ".join(_quoted(_specified(word).replace("$", "$$")) for word in command)


def _quoted(word: str) -> str:
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", escaped) + '"'


# --- the NATS server ------------------------------------------------------------------------------------------------


def _server(settings: Deployment, machine: str) -> list[File]:
    ports = settings.ports
    host = settings.machines[machine]
    configuration = _file(
        layout.NATS_CONFIGURATION,
        "nats.conf",
        machine=machine,
        cluster=settings.cluster,
        server_name=quoted(machine),
        host=quoted(host),
        port=str(ports.clients),
        monitor=quoted(f"{settings.address(machine) if is_loopback(host) else '127.0.0.1'}:{ports.monitor}"),
        store=quoted(layout.STORE),
        store_limit=str(resource(MEMORY, settings.store_limit)),
        routes=_routes(settings, machine) if len(settings.servers) > 1 else "",
        security=_security() if settings.trust else "",
    )
    command = command_line([f"{settings.program}/bin/nats-server", "--config", layout.NATS_CONFIGURATION])
    files = [configuration, _unit("dorm-nats.service", settings, command=command, store=layout.STORE)]
    if settings.trust:
        files += [
            _unit(f"dorm-nats-{what}.{kind}", settings)
            for what in ("reload", "renewed")
            for kind in ("path", "service")
        ]
    return files


def _routes(settings: Deployment, machine: str) -> str:
    routes = "".join(
        f'    "nats://{settings.address(server)}:{settings.ports.routes}"\n' for server in settings.servers
    )
    # Each server proves by its certificate that it is one, and asks the others to.
    tls = (
        f"  tls {{ {_certificate()}, ca_file: {quoted(f'{layout.KEYS}/ca.pem')}, verify: true, timeout: 5 }}\n"
        if settings.trust
        else ""
    )
    return (
        "\ncluster {\n"
        f"  name: {quoted(settings.cluster)}\n"
        f"  host: {quoted(settings.machines[machine])}\n"
        f"  port: {settings.ports.routes}\n"
        f"{tls}  routes: [\n{routes}  ]\n}}\n"
    )


def _security() -> str:
    return f"\ninclude keys/accounts.conf\ntls {{ {_certificate()}, timeout: 3, min_version: '1.2' }}\n"


def _certificate() -> str:
    certificate, key = (quoted(f"{layout.KEYS}/{name}") for name in ("server.pem", "server.key"))
    return f"cert_file: {certificate}, key_file: {key}"


# --- Dorm's own commands ---------------------------------------------------------------------------------------------


def _dorm(settings: Deployment, command: str) -> list[str]:
    return [f"{settings.program}/bin/dorm", command]


def _connecting(settings: Deployment, machine: str, credentials: str) -> list[str]:
    known = ["--credentials", credentials] if settings.trust else []
    return ["--url", settings.url(machine), "--cluster", settings.cluster, *known]


def _master(settings: Deployment, machine: str) -> str:
    return command_line(
        [
            *_dorm(settings, "master"),
            *_connecting(settings, machine, f"{layout.MASTER}/master.json"),
            *("--key", f"{layout.MASTER}/seal.nk", "--name", machine),
            *_rotation(settings.archives),
            *("--metrics", f"{settings.address(machine)}:{settings.ports.master_metrics}", "--log-json"),
        ]
    )


def _rotation(archives: Archives) -> list[str]:
    if not archives.place:
        return []
    options = {"--rotate-size": archives.size, "--rotate-age": archives.age, "--keep": archives.keep}
    given = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    return ["--archives", archives.place, *given]


def _api(settings: Deployment, machine: str) -> str:
    certificate = ["--tls-cert", f"{layout.API}/server.pem", "--tls-key", f"{layout.API}/server.key"]
    return command_line(
        [
            *_dorm(settings, "serve"),
            *("--listen", f"{settings.address(machine)}:{settings.ports.api}"),
            *_connecting(settings, machine, f"{layout.API}/api.json"),
            *(certificate if settings.trust else []),
            "--log-json",
        ]
    )


def _webhooks(settings: Deployment, machine: str) -> str:
    allowed = [word for network in settings.webhooks.allow for word in ("--allow", network)]
    return command_line(
        [
            *(*_dorm(settings, "webhooks"), "run"),
            *_connecting(settings, machine, f"{layout.WEBHOOKS}/webhooks.json"),
            *("--key", f"{layout.WEBHOOKS}/{layout.WEBHOOKS_KEY}", *allowed),
            *("--metrics", f"{settings.address(machine)}:{settings.ports.webhooks_metrics}", "--log-json"),
        ]
    )


def _backup(settings: Deployment, machine: str) -> str:
    metrics = ["--metrics", f"{settings.backup.metrics}/dorm-backup.prom"] if settings.backup.metrics else []
    return command_line(
        [
            *(*_dorm(settings, "backup"), settings.backup.folder, "--keep", str(settings.backup.keep), *metrics),
            *_connecting(settings, machine, f"{layout.BACKUP}/backup.json"),
        ]
    )


def _agent(settings: Deployment, machine: str, node: Node) -> File:
    local = node.docker is None or node.docker.startswith("unix:")
    return _unit(
        "dorm-agent.service",
        settings,
        machine=machine,
        command=command_line([*_dorm(settings, "agent"), *_agent_options(settings, machine, node)]),
        engine=RUNTIMES[node.runtime].unit if local else "",
        checkpoints=_words(settings.checkpoints),
        data=layout.NODE,
        mounted=f"AssertPathIsMountPoint={_specified(settings.mount_point)}" if settings.mount_point else "",
    )


def _agent_options(settings: Deployment, machine: str, node: Node) -> list[str]:
    # A node's credentials are in its data folder once it has joined, and name the servers.
    options = [
        "--name",
        machine,
        "--data",
        layout.NODE,
        "--checkpoints",
        settings.checkpoints,
        "--runtime",
        node.runtime,
    ]
    options += [] if settings.trust else ["--url", settings.url(machine), "--cluster", settings.cluster]
    options += ["--docker", node.docker] if node.docker else []
    metrics = str(settings.ports.agent_metrics)
    if machine in settings.machines:
        options += ["--address", settings.machines[machine]]
        metrics = f"{settings.address(machine)}:{metrics}"
    if node.capacity:
        options += ["--capacity", ",".join(f"{name}={amount}" for name, amount in node.capacity.items())]
    options += [word for gpu in node.gpus for word in ("--gpu", gpu)]
    options += [word for key, value in node.labels.items() for word in ("--label", f"{key}={value}")]
    options += ["--ports", node.ports] if node.ports else []
    options += ["--secrets", node.secrets] if node.secrets else []
    options += [word for freedom in node.allow for word in ("--allow", freedom)]
    options += [word for pattern in node.allow_images for word in ("--allow-image", pattern)]
    options += ["--container-disk", node.container_disk] if node.container_disk else []
    options += ["--trust-apps"] if node.trust_apps else []
    options += ["--firewall", "on"] if node.firewall else []
    options += ["--health-program", node.health_program] if node.health_program else []
    options += ["--health-every", f"{node.health_every:g}"] if node.health_every is not None else []
    options += ["--health-timeout", f"{node.health_timeout:g}"] if node.health_timeout is not None else []
    offered = [volume.offered(name).option(name) for name, volume in sorted(node.volumes.items())]
    options += [word for option in offered for word in ("--volume", option)]
    return [*options, "--metrics", metrics, "--log-json"]


def _folders(settings: Deployment, named: set[str]) -> str:
    """Return the lines of tmpfiles.d for what these parts keep; a folder's files belong to its owner."""
    folders = {
        "NATS server": [layout.STORE],
        "master": list(filter(None, [layout.MASTER, settings.archives.folder])),
        "API": [layout.API],
        "webhooks": [layout.WEBHOOKS],
        "backup": [layout.BACKUP, settings.backup.folder],
    }
    lines = []
    for part, paths in folders.items():
        if part in named:
            lines += [f"d {_words(path)} 0700 dorm dorm -" for path in paths]
    if "node" in named:
        lines.append(f"d {layout.NODE} 0755 root root -")
    return "\n".join(lines)


# --- what a machine lacks ---------------------------------------------------------------------------------------------


class Lack(NamedTuple):
    """One thing that a machine lacks."""

    code: str
    text: str
    """Sentence that says what is missing and what to do."""


def lacks(settings: Deployment, machine: str, root: Path) -> list[Lack]:
    """Return what this machine lacks; its file system is at `root`.  Raises DeploymentError."""
    named = {part.name for part in parts(settings, machine)}
    results = [_program(settings, root, "dorm")]
    if "NATS server" in named:
        results.append(_program(settings, root, "nats-server"))
    if "node" in named:
        results.append(_mounted(settings, root))
    if machine in settings.machines and named - {"node", "backup"}:
        results.append(_address(settings.machines[machine]))
    return [lack for lack in results if lack is not None]


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _program(settings: Deployment, root: Path, name: str) -> Lack | None:
    path = _under(root, f"{settings.program}/bin/{name}")
    if path.is_file() and os.access(path, os.X_OK):
        return None
    return Lack(
        "deploy.program.missing",
        f"there is no program {path}; install Dorm there first (`python3 -m venv {settings.program}`, then its pip), or "
        "correct `program` in the settings",
    )


def _mounted(settings: Deployment, root: Path) -> Lack | None:
    if not settings.mount_point:
        return None
    path = _under(root, settings.mount_point)
    if path.is_mount():
        return None
    what = "nothing is mounted there" if path.is_dir() else "there is no such folder"
    return Lack(
        "deploy.mount.missing",
        f"{path} has to be the file system with the checkpoints that all nodes share, and {what}; mount it (and add it to "
        "/etc/fstab), name its mount point with mount, or set mount: none for a cluster of one machine",
    )


def _address(address: str) -> Lack | None:
    try:
        kind, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.bind(place)
    except OSError:
        return Lack(
            "deploy.address.elsewhere",
            f"this machine has no address {address}; name the machine that this is with --machine, or correct its address",
        )
    return None
