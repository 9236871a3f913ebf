"""The pure part of the Docker runtime: requests to the engine, and its answers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.runtime.docker import container_config
from agents.runtime.docker.container_config import NOBODY, UIDS, Profile, is_allowance
from agents.runtime.docker.engine import Frames
from agents.runtime.interface import ContainerSpec, Key, Mount, Refused, key_name, spec_hash

HOST = container_config.Host("c", "n", "0123456789abcdef", 4, True)
SPEC = ContainerSpec(
    Key("app", 3, 1),
    "image",
    ("python3", "x.py"),
    env={"B": "2", "A": "1"},
    resources={"cpu": 1500, "memory": 1 << 30, "gpu": 2},
    checkpoint_dir="/ckpt/app",
    devices=("0", "GPU-7"),
)


def made(spec: ContainerSpec = SPEC) -> container_config.Json:
    return container_config.container_config(HOST, spec, Path("/var/dorm/app-3-1/run"), Path("/ckpt/app"))


def test_the_whole_configuration_that_the_engine_gets() -> None:
    """All of it, so that a change is seen: each line here keeps something in or out."""
    assert made() == {
        "Image": "image",
        "Entrypoint": ["python3", "x.py"],
        "Cmd": [],
        "Env": [
            "A=1",
            "B=2",
            "DORM_PROGRESS=/dorm/run/progress.jsonl",
            "HOME=/dorm/run",
            "LOGNAME=dorm",
            "TINI_KILL_PROCESS_GROUP=1",
            "USER=dorm",
        ],
        "User": "65534:65534",
        "Labels": {
            "dorm.cluster": "c",
            "dorm.node": "n",
            "dorm.owner": "0123456789abcdef",
            "dorm.app": "app",
            "dorm.generation": "3",
            "dorm.slot": "1",
            "dorm.spec": spec_hash(SPEC),
        },
        "StopSignal": "SIGTERM",
        "HostConfig": {
            "NetworkMode": "host",
            "Init": True,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "local", "Config": {"max-size": "16m", "max-file": "2"}},
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "PidsLimit": 4096,
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "OomScoreAdj": 500,
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": 16384, "Hard": 16384},
                {"Name": "nproc", "Soft": 32768, "Hard": 32768},
            ],
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777,size=536870912"},
            "Privileged": False,
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": "/var/dorm/app-3-1/run",
                    "Target": "/dorm/run",
                    "BindOptions": {"Propagation": "rprivate"},
                },
                {
                    "Type": "bind",
                    "Source": "/ckpt/app",
                    "Target": "/dorm/checkpoints",
                    "BindOptions": {"Propagation": "rprivate"},
                },
            ],
            "NanoCpus": 1_500_000_000,
            "Memory": 1 << 30,
            "MemorySwap": 1 << 30,
            "ShmSize": 1 << 29,
            "DeviceRequests": [
                {
                    "Driver": "nvidia",
                    "DeviceIDs": ["0", "GPU-7"],
                    "Capabilities": [["gpu", "compute", "utility"]],
                }
            ],
        },
    }


def test_a_spec_that_names_no_limit_has_one() -> None:
    host = msgspec.structs.replace(HOST, profile=Profile(memory=8 << 30))
    spec = msgspec.structs.replace(SPEC, resources={}, devices=())
    wanted = container_config.container_config(host, spec, Path("/run"), None)
    limits = wanted["HostConfig"]
    assert (limits["NanoCpus"], limits["Memory"], limits["MemorySwap"]) == (1_000_000_000, 8 << 30, 8 << 30)
    assert (limits["ShmSize"], limits["Tmpfs"]["/tmp"].rpartition("=")[2]) == (4 << 30, str(4 << 30))
    assert "NVIDIA_VISIBLE_DEVICES=void" in wanted["Env"]


def test_the_hash_of_a_container_does_not_depend_on_its_tenant() -> None:
    """Else an agent would take the containers of an earlier release for others."""
    assert spec_hash(msgspec.structs.replace(SPEC, tenant="alice")) == spec_hash(SPEC)
    filed = msgspec.structs.replace(SPEC, files={"a": "b"})
    assert spec_hash(msgspec.structs.replace(filed, tenant="alice")) == spec_hash(filed) != spec_hash(SPEC)


def test_tenants_have_users_of_their_own() -> None:
    users = {Profile().user_of(f"user{number}") for number in range(1000)}
    assert len(users) == 1000
    assert all(UIDS[0] <= uid == gid <= UIDS[1] for uid, gid in users)
    assert Profile().user_of("alice") == (2086119636, 2086119636)  # Files on disk are hers under this id.
    assert Profile().user_of("") == NOBODY
    assert Profile(user=(7, 8)).user_of("alice") == (7, 8)


def test_a_freedom_applies_to_one_tenant_or_to_all() -> None:
    profile = Profile(allow=("alice:writable-root", "alice:shared-user", "core-dumps"))
    host = msgspec.structs.replace(HOST, profile=profile)

    def of(tenant: str) -> container_config.Json:
        return container_config.container_config(host, msgspec.structs.replace(SPEC, tenant=tenant), Path("/run"), None)

    alice, bob = of("alice"), of("bob")
    assert (alice["HostConfig"]["ReadonlyRootfs"], bob["HostConfig"]["ReadonlyRootfs"]) == (False, True)
    assert ("Tmpfs" in alice["HostConfig"], "Tmpfs" in bob["HostConfig"]) == (False, True)
    assert (alice["User"], bob["User"] != alice["User"]) == ("65534:65534", True)
    assert [limit["Name"] for one in (alice, bob) for limit in one["HostConfig"]["Ulimits"]] == ["nofile", "nproc"] * 2


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("writable-root", True),
        ("alice:core-dumps", True),
        (":core-dumps", False),
        ("alice:", False),
        ("privileged", False),
        ("", False),
    ],
)
def test_valid_allowances_for_operators(text: str, fine: bool) -> None:
    assert is_allowance(text) == fine


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("python", ["python"], ["python:3.11", "evil/python", "python2"]),
        ("docker.io/library/*:*", ["python", "python:3.11"], ["lab/python", f"python@sha256:{'0' * 64}"]),
        ("registry.lab/**", ["registry.lab/a", "registry.lab/b/c:1"], ["registry-lab/a", "evil.io/registry.lab/a"]),
        ("*.lab/app:1.*", ["a.lab/app:1.2"], ["evil.io/a.lab/app:1.2", "a.lab/app:2.1", "a.lab/app"]),
        ("**@sha256:*", [f"a/b@sha256:{'1' * 64}"], ["a/b", "a/b:sha256"]),
        ("localhost:5000/a", ["localhost:5000/a"], ["localhost:5000/a:1", "a"]),
        ("docker.io/lab/a:latest", ["lab/a"], ["lab.io/a", "localhost/a"]),
    ],
)
def test_images_of_a_pattern(pattern: str, fitting: list[str], other: list[str]) -> None:
    profile = Profile(images=("no/such:image", pattern))
    assert [image for image in [*fitting, *other] if profile.takes(image)] == fitting
    assert all(Profile().takes(image) for image in other)


def test_two_roots_never_share_a_name_or_a_filter() -> None:
    other = msgspec.structs.replace(HOST, owner="fedcba9876543210")
    assert container_config.container_name(HOST, SPEC.key) == "dorm-c-01234567-app-3-1"
    assert container_config.container_name(other, SPEC.key) == "dorm-c-fedcba98-app-3-1"
    assert set(container_config.own_labels(HOST)) ^ set(container_config.own_labels(other)) == {
        "dorm.owner=0123456789abcdef",
        "dorm.owner=fedcba9876543210",
    }


def test_the_runtime_overrides_its_own_variables() -> None:
    spec = msgspec.structs.replace(SPEC, env={"DORM_PROGRESS": "/etc/passwd", "HOME": "/work"})
    variables = made(spec)["Env"]
    assert "DORM_PROGRESS=/dorm/run/progress.jsonl" in variables
    assert "HOME=/work" in variables
    assert len(variables) == len({variable.split("=")[0] for variable in variables})


def info(**state: Any) -> container_config.Json:
    defaults = {
        "Status": "exited",
        "ExitCode": 0,
        "Error": "",
        "OOMKilled": False,
        "StartedAt": "2026-01-01T00:00:01.5Z",
        "FinishedAt": "2026-01-01T00:00:02.000000001Z",
    }
    return {"State": {**defaults, **state}, "Config": {"Labels": {"dorm.spec": "hash"}}}


NEVER = "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, ("exited", 0, "", False)),
        ({"ExitCode": 137, "OOMKilled": True}, ("exited", 137, "", True)),
        ({"Status": "running", "FinishedAt": NEVER}, ("running", None, "", False)),
        ({"Status": "paused", "FinishedAt": NEVER}, ("running", None, "", False)),
        ({"Status": "restarting"}, ("running", None, "", False)),
        ({"Status": "dead", "ExitCode": 1}, ("exited", 1, "", False)),
        ({"Status": "removing", "ExitCode": 2}, ("exited", 2, "", False)),
        ({"Status": "something new", "Running": True}, ("running", None, "", False)),
        ({"Status": "something new", "Running": False}, ("exited", 0, "", False)),
        ({"Status": "created", "StartedAt": NEVER, "FinishedAt": NEVER}, ("created", None, "", False)),
        (
            {"Status": "created", "StartedAt": NEVER, "FinishedAt": NEVER, "ExitCode": 128, "Error": "no"},
            ("exited", None, "no", False),
        ),
        (
            {"Status": "created", "StartedAt": NEVER, "FinishedAt": NEVER, "ExitCode": 127},
            ("exited", None, "the engine could not start it (code 127)", False),
        ),
        (
            {"Status": "removing", "StartedAt": NEVER, "FinishedAt": NEVER},
            ("exited", None, "it was removed before it ran", False),
        ),
    ],
    ids=repr,
)
def test_states(state: dict[str, Any], expected: tuple[object, ...]) -> None:
    seen = container_config.seen(Key("app", 1, 0), info(**state))
    assert (seen.state, seen.exit_code, seen.error, seen.out_of_memory) == expected
    assert container_config.never_ran(seen) == (seen.state == "exited" and bool(seen.error))


def test_nothing_ends_before_it_starts() -> None:
    seen = container_config.seen(Key("app", 1, 0), info(StartedAt="2026-01-01T00:00:03Z"))
    assert seen.exited_at == seen.started_at > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 10**9),
        ("1970-01-01T00:00:01.000000007Z", 10**9 + 7),
        ("1970-01-01T01:00:01.5+01:00", 15 * 10**8),
        ("2026-11-21T08:29:28.52764240512Z", 1795249768_527642405),
        (NEVER, 0),
        ("", 0),
        ("yesterday", 0),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert container_config.nanoseconds(text) == expected


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ('OCI runtime create failed: exec: "nope": executable file not found in $PATH: unknown', "command"),
        ('exec: "nvidia-smi": executable file not found in $PATH', "command"),
        ('could not select device driver "" with capabilities: [[gpu]]', "device"),
        ("nvidia-container-cli: device error: 9: unknown device", "device"),
        ("container init was OOM-killed (memory limit too low?)", "spec"),
        ("no space left on device", None),
        ("fork/exec /usr/bin/containerd-shim: resource temporarily unavailable", None),
    ],
)
def test_the_cause_of_a_failed_start_is_recognized(message: str, cause: str | None) -> None:
    refused = container_config.refusal(message)
    assert (refused.cause if refused else None) == cause


def test_a_command_is_searched_in_the_containers_path() -> None:
    assert container_config.candidates("sh", ["A=b", "PATH=/bin::/usr/bin"], "/srv") == (
        "/bin/sh",
        "/srv/sh",
        "/usr/bin/sh",
    )
    assert container_config.candidates("./run", [], "/srv") == ("/srv/run",)
    assert container_config.candidates("../up", [], "") == ("/up",)
    assert container_config.candidates("/bin/sh", [], "/work") == ("/bin/sh",)


def test_a_hash_depends_on_the_content_and_not_on_the_order() -> None:
    turned = msgspec.structs.replace(SPEC, env=dict(reversed(SPEC.env.items())))
    assert spec_hash(turned) == spec_hash(SPEC)
    changes: list[dict[str, Any]] = [
        {"key": Key("app", 4, 1)},
        {"image": "other"},
        {"command": ("python3",)},
        {"env": {"A": "1"}},
        {"resources": {}},
        {"checkpoint_dir": ""},
        {"grace_s": 1.0},
        {"devices": ()},
        {"files": {"dorm-hostfile": "a"}},
        {"workdir": "0" * 64},
        {"mounts": (Mount("data", "/srv/data", "/data", read_only=True),)},
    ]
    assert {next(iter(change)) for change in changes} == set(SPEC.__struct_fields__) - {"tenant", "outputs_dir", "stop"}
    assert len({spec_hash(msgspec.structs.replace(SPEC, **change)) for change in changes} | {spec_hash(SPEC)}) == 12
    assert (
        spec_hash(SPEC) == "9e7cc78681cef6470e40d3083aa5e4c6"
    )  # running containers carry it: a change would turn all into conflicts


def test_names_and_keys_are_one_to_one() -> None:
    keys = [Key("a", 1, 23), Key("a", 12, 3), Key("a-1", 2, 3), Key("a", 1, 2), Key("a-1-2", 3, 0), Key("a", 0, 0)]
    assert len({key_name(key) for key in keys}) == len(keys)
    with pytest.raises(Refused):
        key_name(Key("..", 1, 0))


def test_frames_are_joined_regardless_of_cuts() -> None:
    rng = random.Random(1)
    payloads = [rng.randbytes(rng.randrange(1, 300)) for _ in range(50)]
    stream = b"".join(bytes([1 + i % 2, 0, 0, 0]) + len(p).to_bytes(4, "big") + p for i, p in enumerate(payloads))
    for _ in range(50):
        frames, found, at = Frames(), [], 0
        while at < len(stream):
            size = rng.randrange(1, 40)
            found += frames.feed(stream[at : at + size])
            at += size
        assert found == payloads
        assert frames.complete
    assert not frames.feed(stream[:5])
    assert not frames.complete


def test_a_copy_is_mounted_with_the_folders_above_it_and_where_earlier_releases_had_it() -> None:
    spec = msgspec.structs.replace(SPEC, workdir="0" * 64)

    def mounted(*work_dirs: str) -> tuple[str, list[tuple[str, str]]]:
        made = container_config.container_config(HOST, spec, Path("/run"), None, None, [Path(one) for one in work_dirs])
        return made["WorkingDir"], [(one["Source"], one["Target"]) for one in made["HostConfig"]["Mounts"][1:]]

    assert mounted("/c/project", "/c/project/up", "/c/project/up/work") == (
        "/dorm/project/up/work",
        [
            ("/c/project", "/dorm/project"),
            ("/c/project/up", "/dorm/project/up"),
            ("/c/project/up/work", "/dorm/project/up/work"),
            ("/c/project/up/work", "/dorm/work"),
        ],
    )
    assert mounted("/c/work") == ("/dorm/work", [("/c/work", "/dorm/work")])
