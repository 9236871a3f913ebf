"""A container's environment variables, and the command that starts it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.contract import checkpoint_command, container_spec, rank_of
from agents.runtime.interface import ContainerSpec, Key, Mount, Refused
from events.kinds import Placed
from events.parts import AppPart
from events.spec import check_spec
from events.spec.variables import names_for
from tests.core.records import document
from tests.errors import raises

PLACEMENT = [
    Placed(slot=4, node="b", address="10.0.0.2", port=20009),
    Placed(slot=1, node="a", address="10.0.0.1", port=20001),
    Placed(slot=2, node="b", address="10.0.0.2", port=20002),
]


def made(
    slot: int, *, resumes: bool = False, mount: str = "", placement: list[Placed] = PLACEMENT, **fields: Any
) -> ContainerSpec:
    app = AppPart(
        check_spec(document(**fields)),
        generation=3,
        placement=placement,
        master_port=20042,
        released=True,
        resume=resumes,
    )
    return container_spec(
        "app-x", app, slot, checkpoint_dir="/shared/app-x", checkpoint_mount=mount, run_dir="/run/x", devices=("0", "2")
    )


def test_ranks_are_positions_among_the_slots() -> None:
    assert [rank_of(PLACEMENT, slot) for slot in (1, 2, 4)] == [0, 1, 2]


def test_every_slot_finds_itself_and_its_peers() -> None:
    for slot, rank, own in ((1, 0, "10.0.0.1:20001"), (2, 1, "10.0.0.2:20002"), (4, 2, "10.0.0.2:20009")):
        env = made(slot).env
        assert env["DORM_PEERS"].split(",")[int(env["DORM_RANK"])] == own
        assert (env["DORM_RANK"], env["DORM_SLOT"], env["DORM_WORLD_SIZE"]) == (str(rank), str(slot), "3")
        assert (env["DORM_MASTER_ADDR"], env["DORM_MASTER_PORT"]) == ("10.0.0.1", "20042")
        assert (env["DORM_APP"], env["DORM_GENERATION"]) == ("app-x", "3")


def test_an_ipv6_address_is_in_brackets_before_a_port_and_nowhere_else() -> None:
    placement = [Placed(slot=slot, node="a", address="fd00::1", port=20001 + slot) for slot in (1, 2)]
    env = made(2, placement=placement).env
    assert env["DORM_PEERS"] == "[fd00::1]:20002,[fd00::1]:20003"
    assert env["DORM_MASTER_ADDR"] == "fd00::1"


def test_resources_grace_devices_and_key() -> None:
    spec = made(2, cpu=2.5, grace="7s", image="img")
    assert spec.key == Key("app-x", 3, 2)
    assert (spec.resources, spec.grace_s, spec.devices, spec.image) == ({"cpu": 2500}, 7.0, ("0", "2"), "img")
    assert spec.env["OMP_NUM_THREADS"] == "2"


def test_the_apps_own_variables_win_over_defaults_and_never_over_the_contract() -> None:
    env = made(1, env={"OMP_NUM_THREADS": "9", "PYTHONUNBUFFERED": "", "MASTER_PORT": "1"}, engine="torchrun").env
    assert (env["OMP_NUM_THREADS"], env["PYTHONUNBUFFERED"]) == ("9", "")
    assert made(1).env["PYTHONUNBUFFERED"] == "1"
    assert env["MASTER_PORT"] == "20042"


@pytest.mark.parametrize(
    ("fields", "resume", "command"),
    [
        ({}, False, ("work",)),
        ({}, True, ("work",)),
        ({"resume": ["work", "--resume"]}, False, ("work",)),
        ({"resume": ["work", "--resume"]}, True, ("work", "--resume")),
    ],
)
def test_which_command_starts_it(fields: dict[str, Any], resume: bool, command: tuple[str, ...]) -> None:
    assert made(1, resumes=resume, **fields).command == command


def test_where_it_finds_its_checkpoints() -> None:
    assert made(1).env["DORM_CHECKPOINT_DIR"] == "/shared/app-x"
    assert made(1, mount="/dorm/checkpoints").env["DORM_CHECKPOINT_DIR"] == "/dorm/checkpoints"


def test_where_it_finds_its_outputs() -> None:
    assert "DORM_OUTPUTS" not in made(1).env
    app = AppPart(check_spec(document()), generation=3, placement=PLACEMENT, master_port=1, released=True, tenant="t")
    for mount, found in (("", "/shared/o"), ("/dorm/outputs", "/dorm/outputs")):
        spec = container_spec(
            "app-x", app, 1, checkpoint_dir="/c", checkpoint_mount="", run_dir="/run/x", devices=(),
            outputs_dir="/shared/o", outputs_mount=mount,
        )  # fmt: skip
        assert (spec.env["DORM_OUTPUTS"], spec.outputs_dir, spec.tenant) == (found, "/shared/o", "t")


def test_torchrun_finds_the_variables_of_its_launcher() -> None:
    env = made(4, engine="torchrun").env
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("2", "3", "0")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "20042")
    assert "RANK" not in made(4).env


def test_variables_in_its_command_and_its_env_have_their_values() -> None:
    fields: dict[str, Any] = {
        "command": ["train", "--rank=$DORM_RANK", "${OUT}", "$HOME", "$LR", "$KEY", "$DORM_PROGRESS"],
        "resume": ["train", "--resume", "$DORM_CHECKPOINT_DIR"],
        "env": {"OUT": "$DORM_CHECKPOINT_DIR/$LR", "LR": "0.1", "OMP_NUM_THREADS": "$DORM_WORLD_SIZE"},
        "secrets": {"KEY": "wandb"},
    }
    spec = made(2, **fields)
    assert spec.command == (
        "train", "--rank=1", "/shared/app-x/$LR", "$HOME", "0.1", "/run/x/secret-wandb", "/run/x/progress.jsonl",
    )  # fmt: skip
    assert (spec.env["OUT"], spec.env["OMP_NUM_THREADS"]) == ("/shared/app-x/$LR", "3")
    assert made(2, resumes=True, **fields).command == ("train", "--resume", "/shared/app-x")


def test_an_engine_adds_words_of_its_own_and_variables() -> None:
    spec = made(
        1, engine="ps", n_min=3, n_max=3, engine_options={"scheduler": True}, command=["train", "$DORM_ROLE", "$@"]
    )
    assert spec.command[:2] == ("/bin/sh", "-c")
    assert spec.command[4:] == ("train", "worker", "$@")
    assert "$@" in spec.command[2]


def test_each_container_of_an_mpi_job_has_its_own_words() -> None:
    specs = [made(slot, engine="mpi", command=["train", "$DORM_RANK"]) for slot in (1, 2, 4)]
    assert [json.loads(spec.files["dorm-command.json"]) for spec in specs] == [
        ["train", str(rank)] for rank in (0, 1, 2)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"engine": "mpi"},
        {"engine": "ps", "n_min": 3, "n_max": 3},
        {"engine": "elastic", "volumes": {"data": "/data"}},
        {"group": {"name": "g", "parameters": {"lr": 1}}},
    ],
)
def test_the_names_that_a_spec_may_use_are_those_that_its_containers_have(fields: dict[str, Any]) -> None:
    app = AppPart(check_spec(document(**fields)), generation=3, placement=PLACEMENT, master_port=1, released=True)
    spec = container_spec(
        "app-x", app, 1, checkpoint_dir="/c", checkpoint_mount="", run_dir="/run/x", devices=(), outputs_dir="/o",
        mounts=tuple(Mount(name, "/d", "/d", read_only=True) for name in fields.get("volumes", ())),
    )  # fmt: skip
    has = {name for name in spec.env if name.startswith("DORM_")} | {"DORM_PROGRESS"}  # Which a runtime adds.
    assert names_for(app.spec) == has


def test_a_command_that_variables_make_too_long_is_refused() -> None:
    with raises(Refused, "container.command.too_large"):
        made(1, command=["train", "$A$A"], env={"A": "x" * 100_000})


def test_the_command_for_checkpoints_reads_the_containers_variables() -> None:
    spec = check_spec(document(checkpoint=["save", "$DORM_RANK", "$OUT", "$HOME"], env={"OUT": "$DORM_RANK"}))
    variables = {"DORM_RANK": "2", "OUT": "2", "HOME": "/run/x", "PATH": "/bin"}
    assert checkpoint_command(spec, variables) == ("save", "2", "2", "$HOME")
