"""Pure part of the Docker runtime: converts a typed spec to the engine's configuration, and the engine's answers back.

Nothing from an app's spec reaches the engine raw.  Every container gets all capabilities dropped, no new privileges,
the engine's default seccomp profile, an unprivileged user, an init process, cgroup and IPC namespaces of its own, the
host's network (a container has its node's own address), no restart policy, and a limit for each resource, even if its
spec names none.  It can write to its private directory, its copy of a shipped folder and the two folders above that,
its checkpoints and its outputs (mounted after realpath(3) and inside folders that the agent's configuration allows),
volumes that the node offers for writing, /tmp and /dev/shm; what else it sees is read-only.  The node's configuration
may relax this (`Profile`).

*Permissions* follow from the node's configuration.  The default is the restricted profile; the node's operator alone
may relax it, for one tenant or for all.  A tenant is the app's tenant on a cluster that knows its users, and the app's
user on an open one.  If the agent is root, each tenant's containers run as a user of their own.  Its id follows from
the tenant's name alone, so it is the same on all nodes that share a folder of checkpoints.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from agents.runtime.interface import (
    PROGRESS_FILE,
    ContainerSpec,
    Key,
    Mount,
    RefusalCause,
    Refused,
    Seen,
    State,
    Use,
    check_spec,
    key_name,
    spec_hash,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


# --- permissions ------------------------------------------------------------------------------------------------------

Freedom = Literal["writable-root", "shared-user", "core-dumps"]
"""`writable-root`: the image's files can be changed in the container, and /tmp is on its disk.  `shared-user`: containers run
as 65534:65534, as those of other tenants with this freedom.  `core-dumps`: a crash may write one."""
FREEDOMS: Final[tuple[Freedom, ...]] = get_args(Freedom)

UIDS: Final = (1_900_000_000, 2_147_000_000)
"""First and last id of tenants: above those that distributions, subuid(5) and systemd-nspawn hand out, and so many that two of
a thousand tenants share one with a probability of 0.2 %."""
NOBODY: Final = (65534, 65534)
_GIB: Final = 1024**3
DEFAULT_DISK: Final = 32 * _GIB


class Profile(msgspec.Struct, frozen=True):
    """How a node confines containers."""

    user: tuple[int, int] | None = None
    """(uid, gid) of all containers; None for one user per tenant."""
    allow: tuple[str, ...] = ()
    """`FREEDOM` for all tenants, `TENANT:FREEDOM` for one."""
    memory: int = _GIB
    """Limit in bytes for a container whose spec names none."""
    disk: int = DEFAULT_DISK
    """Bytes that a container may write to the node's disk."""
    images: tuple[str, ...] = ()
    """Patterns of the images that containers may have (`full_name`); none for any image."""

    def takes(self, image: str) -> bool:
        """Return whether containers may have this image."""
        return not self.images or any(_matches(pattern, image) for pattern in self.images)

    def allows(self, tenant: str, freedom: Freedom) -> bool:
        """Return whether the operator has given this tenant a freedom."""
        return freedom in self.allow or f"{tenant}:{freedom}" in self.allow

    def user_of(self, tenant: str) -> tuple[int, int]:
        """Return (uid, gid) of a tenant's containers.  A container without a tenant belongs to no user."""
        if self.user is not None:
            return self.user
        if not tenant or self.allows(tenant, "shared-user"):
            return NOBODY
        first, last = UIDS
        digest = hashlib.blake2b(tenant.encode(), digest_size=8, person=b"dorm uid").digest()
        uid = first + int.from_bytes(digest) % (last - first + 1)
        return uid, uid


def default_memory(capacity: int) -> int:
    """Return the limit for a container whose spec names none, on a node with this much memory for apps."""
    return max(_GIB, capacity // 4)


def is_allowance(text: str) -> bool:
    """Return whether the text is `FREEDOM` or `TENANT:FREEDOM`."""
    tenant, colon, freedom = text.rpartition(":")
    return freedom in FREEDOMS and bool(tenant) == bool(colon)


def full_name(image: str) -> str:
    """Return an image's name with the engine's defaults: `python` is `docker.io/library/python:latest`."""
    name, at, digest = image.partition("@")
    first, slash, _ = name.partition("/")
    if not slash or not (first == "localhost" or set(first) & set(".:")):
        name = f"docker.io/{name}" if slash else f"docker.io/library/{name}"
    if not at and ":" not in name.rpartition("/")[2]:
        name += ":latest"
    return name + at + digest


_WILD: Final = {"**": ".*", "*": "[^/@]*"}


def _matches(pattern: str, image: str) -> bool:
    """`*` stands for any text without `/` and `@`, `**` for any text: so a pattern for tags does not accept a digest, nor one
    for a registry a folder of that name on another one."""
    parts = re.split(r"(\*\*|\*)", pattern)
    expression = "".join(_WILD.get(part) or re.escape(part) for part in parts)
    return any(re.fullmatch(expression, name) is not None for name in (image, full_name(image)))


# --- configuration ----------------------------------------------------------------------------------------------------

RUN_MOUNT: Final = "/dorm/run"
CHECKPOINT_MOUNT: Final = "/dorm/checkpoints"
WORK_MOUNT: Final = "/dorm/work"
"""The container's own copy of the project folder that its app ships; it starts in the same one, below empty folders of its own
(`work_mounts`)."""
OUTPUTS_MOUNT: Final = "/dorm/outputs"
PIDS_LIMIT: Final = 4096
"""Processes and threads of one container."""
TENANT_PIDS: Final = 32_768
"""Processes and threads of one user on the machine, in all containers."""
OPEN_FILES: Final = 16_384
"""Open files of one process."""
DEFAULT_CPU: Final = 1000
"""Milli-cores of a container whose spec names none: OMP_NUM_THREADS is 1 then."""
OOM_SCORE: Final = 500
"""Score by which the kernel ends a container before the agent or the engine if the machine itself runs out of memory."""
LOG_BYTES: Final = "16m"
LOG_FILES: Final = "2"
_MIN_SHM: Final = 64 * 1024 * 1024
"""The least size of /dev/shm and of /tmp, bytes."""
_NANO_PER_MILLI: Final = 1_000_000

LABEL_CLUSTER: Final = "dorm.cluster"
LABEL_NODE: Final = "dorm.node"
LABEL_OWNER: Final = "dorm.owner"
LABEL_APP: Final = "dorm.app"
LABEL_GENERATION: Final = "dorm.generation"
LABEL_SLOT: Final = "dorm.slot"
LABEL_SPEC: Final = "dorm.spec"

OWN_LABELS: Final = (LABEL_CLUSTER, LABEL_NODE, LABEL_OWNER)
_OWNER_IN_NAME: Final = 8

Json = dict[str, Any]


class Host(msgspec.Struct, frozen=True):
    """The runtime's settings, and the engine's report of itself."""

    cluster: str
    node: str
    owner: str
    """Identity of the node's root folder, hex: it distinguishes two clusters of the same name on one engine."""
    cpus: int
    """The engine's number of CPUs: it refuses a higher limit, which would limit nothing."""
    swap_limit: bool
    """Whether the kernel can limit swap."""
    checkpoint_root: Path | None = None
    """Checkpoint directories are below this folder; None if none may be mounted."""
    profile: Profile = Profile()


def container_name(host: Host, key: Key) -> str:
    """Return a name unique on an engine, even if nodes of several clusters, or of clusters with the same name, share it."""
    return f"dorm-{host.cluster}-{host.owner[:_OWNER_IN_NAME]}-{key_name(key)}"


def own_labels(host: Host) -> tuple[str, ...]:
    """Return the filter that selects only this node's containers."""
    return f"{LABEL_CLUSTER}={host.cluster}", f"{LABEL_NODE}={host.node}", f"{LABEL_OWNER}={host.owner}"


def labels(host: Host, spec: ContainerSpec) -> dict[str, str]:
    """Return the labels by which a restarted agent recognizes its containers."""
    return {
        LABEL_CLUSTER: host.cluster,
        LABEL_NODE: host.node,
        LABEL_OWNER: host.owner,
        LABEL_APP: spec.key.app,
        LABEL_GENERATION: str(spec.key.generation),
        LABEL_SLOT: str(spec.key.slot),
        LABEL_SPEC: spec_hash(spec),
    }


def container_config(
    host: Host,
    spec: ContainerSpec,
    run_dir: Path,
    checkpoints: Path | None,
    outputs: Path | None = None,
    work_dirs: Sequence[Path] = (),
) -> Json:
    """Return the body of POST /containers/create.  `work_dirs` (`RunDirs.work_dirs`) is used only by a spec with a shipped
    folder, and has at least one.  Raises `Refused` ("spec")."""
    check_spec(spec)
    for name in spec.env:
        if name.upper().startswith("NVIDIA_"):
            raise Refused(
                "spec",
                f"{name} is not the app's to set: it would choose devices past the agent",
                code="container.env.reserved",
            )
    if spec.resources.get("gpu", 0) != len(spec.devices):
        raise Refused(
            "spec",
            f"{spec.resources.get('gpu', 0)} GPUs demanded, {len(spec.devices)} given",
            code="container.devices.differ",
        )
    environment = {
        "HOME": RUN_MOUNT,
        # The user has no entry in the image's passwd, and getpass looks here first.
        "LOGNAME": "dorm",
        "USER": "dorm",
        **spec.env,
        # A container without GPUs gets none, regardless of its image and of the engine's default runtime.
        **({} if spec.devices else {"NVIDIA_VISIBLE_DEVICES": "void"}),
        "DORM_PROGRESS": f"{RUN_MOUNT}/{PROGRESS_FILE}",
        "TINI_KILL_PROCESS_GROUP": "1",  # the init process passes SIGTERM to the whole group
    }
    return {
        "Image": spec.image,
        "Entrypoint": list(spec.command),  # the image's own entry point would change what runs
        "Cmd": [],
        "Env": [f"{name}={environment[name]}" for name in sorted(environment)],
        "User": "{}:{}".format(*host.profile.user_of(spec.tenant)),
        "Labels": labels(host, spec),
        "StopSignal": "SIGTERM",
        **({"WorkingDir": work_mounts(work_dirs)[-1]} if spec.workdir else {}),
        "HostConfig": _host_config(host, spec, run_dir, checkpoints, outputs, work_dirs if spec.workdir else ()),
    }


def _host_config(
    host: Host,
    spec: ContainerSpec,
    run_dir: Path,
    checkpoints: Path | None,
    outputs: Path | None,
    work_dirs: Sequence[Path],
) -> Json:
    cpu, memory = spec.resources.get("cpu", 0) or DEFAULT_CPU, spec.resources.get("memory", 0) or host.profile.memory
    shared = max(_MIN_SHM, memory // 2)
    config: Json = {
        "NetworkMode": "host",
        "Init": True,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        # Not json-file, which loses bytes that are not UTF-8.
        "LogConfig": {"Type": "local", "Config": {"max-size": LOG_BYTES, "max-file": LOG_FILES}},
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": PIDS_LIMIT,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Privileged": False,
        "OomScoreAdj": OOM_SCORE,
        "Ulimits": [
            *([] if host.profile.allows(spec.tenant, "core-dumps") else [{"Name": "core", "Soft": 0, "Hard": 0}]),
            {"Name": "nofile", "Soft": OPEN_FILES, "Hard": OPEN_FILES},
            {"Name": "nproc", "Soft": TENANT_PIDS, "Hard": TENANT_PIDS},
        ],
        "NanoCpus": min(max(cpu, 10), host.cpus * 1000) * _NANO_PER_MILLI,  # the engine accepts 0.01 or more
        "Memory": memory,
        "MemorySwap": memory,  # equal: no swap on top
        "ShmSize": shared,  # charged to the same limit, as /tmp is; loaders pass batches there
        "ReadonlyRootfs": False,
        "Mounts": [_bind(run_dir, RUN_MOUNT)],
    }
    if checkpoints is not None:
        config["Mounts"].append(_bind(checkpoints, CHECKPOINT_MOUNT))
    targets = work_mounts(work_dirs)
    config["Mounts"] += map(_bind, work_dirs, targets)
    if targets and WORK_MOUNT not in targets:
        config["Mounts"].append(_bind(work_dirs[-1], WORK_MOUNT))
    if outputs is not None:
        config["Mounts"].append(_bind(outputs, OUTPUTS_MOUNT))
    config["Mounts"] += [_volume(mount) for mount in spec.mounts]
    if not host.profile.allows(spec.tenant, "writable-root"):
        config["ReadonlyRootfs"] = True
        # Executable, unlike the engine's default: Triton and torch.compile build libraries there and load them.
        config["Tmpfs"] = {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={shared}"}
    if spec.devices:
        config["DeviceRequests"] = [
            {
                "Driver": "nvidia",
                "DeviceIDs": list(spec.devices),
                "Capabilities": [["gpu", "compute", "utility"]],
            }
        ]
    return config


def work_mounts(work_dirs: Sequence[Path]) -> list[str]:
    """Return where a container sees its copy of a shipped folder, last, and the folders above that are its own.  Each is a
    mount: nobody can rename or replace what something is mounted on, so the agent finds the copy at its path on the host."""
    return [str(Path("/dorm", *(work.name for work in work_dirs[: at + 1]))) for at in range(len(work_dirs))]


def _bind(source: Path, target: str) -> Json:
    return {"Type": "bind", "Source": str(source), "Target": target, "BindOptions": {"Propagation": "rprivate"}}


def _volume(mount: Mount) -> Json:
    """Return the mount of a volume.  Mounts within its folder stay out: engines before 25 would leave that writable
    in a mount that is read-only."""
    made = _bind(Path(mount.source), mount.target)
    made["BindOptions"]["NonRecursive"] = True
    return {**made, "ReadOnly": mount.read_only}


def differences(config: Json, info: Json, *, swap_limit: bool) -> list[str]:
    """Return how the created container differs from the request: the engine ignores fields that it does not know, and limits
    that it cannot enforce.  `info` is the body of GET /containers/NAME/json."""
    wanted, made = config["HostConfig"], info["HostConfig"]
    names = [
        "NetworkMode",
        "Init",
        "AutoRemove",
        "CapDrop",
        "SecurityOpt",
        "PidsLimit",
        "Privileged",
        "ShmSize",
        "IpcMode",
    ]
    names += ["CgroupnsMode", "OomScoreAdj", "ReadonlyRootfs", "Tmpfs", "NanoCpus", "Memory"]
    names += ["MemorySwap"] if swap_limit else []
    differing = [
        f"{name} is {made.get(name)!r}, not {wanted.get(name)!r}"
        for name in names
        if (made.get(name) or None) != (wanted.get(name) or None)
    ]
    ulimits = {(u.get("Name"), u.get("Soft"), u.get("Hard")) for u in made.get("Ulimits") or ()}
    if ulimits != {(u["Name"], u["Soft"], u["Hard"]) for u in wanted["Ulimits"]}:
        differing.append(f"Ulimits are {made.get('Ulimits')!r}")
    if made.get("RestartPolicy", {}).get("Name") not in ("no", ""):
        differing.append("it has a restart policy")
    if info["Config"].get("User") != config["User"]:
        differing.append(f"User is {info['Config'].get('User')!r}")
    mounts = [_mounted(m) for m in made.get("Mounts") or ()]
    if made.get("Binds") or mounts != [_mounted(m) for m in wanted["Mounts"]]:
        differing.append(f"Mounts are {mounts!r} and {made.get('Binds')!r}")
    devices = [request.get("DeviceIDs") for request in made.get("DeviceRequests") or ()]
    if devices != [request["DeviceIDs"] for request in wanted.get("DeviceRequests", ())]:
        differing.append(f"devices are {devices!r}")
    return differing


def _mounted(mount: Json) -> tuple[str | None, str | None, str | None, bool]:
    return mount.get("Type"), mount.get("Source"), mount.get("Target"), bool(mount.get("ReadOnly"))


_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d)")


def nanoseconds(text: str) -> int:
    """Return UTC nanoseconds of an RFC 3339 time, 0 for the engine's "never" (year 1) and for text that is not a
    time."""
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    second = datetime.datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
    if second.year <= 1:
        return 0
    return int(second.timestamp()) * 10**9 + int((match[2] or "").ljust(9, "0"))


def key_of(labels: dict[str, str]) -> Key | None:
    """Return the container's key; None if the labels are not ours."""
    try:
        return Key(labels[LABEL_APP], int(labels[LABEL_GENERATION]), int(labels[LABEL_SLOT]))
    except (KeyError, ValueError):
        return None


_STATES: Final[dict[str, State]] = {
    "created": "created",
    "running": "running",
    "paused": "running",  # its processes exist, and hold their room
    "restarting": "running",
    "exited": "exited",
    "removing": "exited",
    "dead": "exited",  # its removal failed halfway
}


def seen(key: Key, info: Json) -> Seen:
    """Convert the body of GET /containers/NAME/json.  A container whose start failed has `error` and counts as exited."""
    state: Json = info["State"]
    status = _STATES.get(state.get("Status", ""), "running" if state.get("Running") else "exited")
    error = state.get("Error") or ""
    started_at = nanoseconds(state.get("StartedAt", ""))
    if status == "created" and (error or state.get("ExitCode")):
        status = "exited"
        error = error or f"the engine could not start it (code {state.get('ExitCode')})"
    if status == "exited" and not started_at and not error:
        error = "it was removed before it ran"
    ran_to_end = status == "exited" and started_at > 0
    return Seen(
        key,
        status,
        info["Config"]["Labels"].get(LABEL_SPEC, ""),
        started_at=started_at,
        # The engine records the start time when its start call is done; a quick program has ended before.
        exited_at=max(started_at, nanoseconds(state.get("FinishedAt", ""))) if status == "exited" else 0,
        exit_code=state.get("ExitCode") if ran_to_end else None,
        out_of_memory=bool(state.get("OOMKilled")),
        error=error,
    )


def use_of(sample: Json) -> Use:
    """Convert the body of GET /containers/NAME/stats, counted like `agents.runtime.cgroups.read`."""
    memory = sample.get("memory_stats", {})
    detail = memory.get("stats", {})
    cache = detail.get("total_inactive_file", detail.get("inactive_file", 0))
    return Use(
        cpu_s=sample.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0) / 1e9,
        memory=max(0, memory.get("usage", 0) - cache),
    )


def never_ran(seen: Seen) -> bool:
    """Return whether a start was tried and failed: the container may be removed and created again."""
    return seen.state == "exited" and seen.started_at == 0


_REFUSALS: Final[tuple[tuple[RefusalCause, re.Pattern[str]], ...]] = (
    ("command", re.compile(r"executable file not found|exec: |exec format error|is a directory", re.IGNORECASE)),
    ("device", re.compile(r"device driver|nvidia|unknown device", re.IGNORECASE)),
    ("spec", re.compile(r"memory limit too low|unable to find user", re.IGNORECASE)),
)


_TROUBLE: Final = re.compile(
    r"no space left|disk quota|read-only file system|input/output error|too many open files|ttrpc|shutting down"
    r"|setting rlimit|cannot allocate memory|can't get final child's PID"
    r"|logging (driver|plugin)|log(ging)? driver|(invalid|unknown) runtime"
    r"|resource temporarily unavailable|deadline exceeded|context canceled|connection (refused|reset)|connection error",
    re.IGNORECASE,
)


def trouble(message: str) -> bool:
    """Return whether the engine's message is about its own trouble, not the request: no app is charged with that."""
    return _TROUBLE.search(message) is not None


def refusal(message: str) -> Refused | None:
    """Return why a start failed permanently, from the engine's message; None if a retry may succeed."""
    for cause, pattern in _REFUSALS:
        if pattern.search(message):
            return Refused(cause, message)
    return None


def candidates(command: str, environment: list[str], workdir: str) -> tuple[str, ...]:
    """Return the paths where execvp(3) would look for a command, in its order."""
    if "/" in command:
        return (os.path.normpath(os.path.join(workdir or "/", command)),)
    path = next((entry[5:] for entry in environment if entry.startswith("PATH=")), "/usr/local/bin:/usr/bin:/bin")
    return tuple(os.path.join(folder or workdir or "/", command) for folder in path.split(":"))
