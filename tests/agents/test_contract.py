"""A container's environment variables, and the command that starts it."""

from __future__ import annotations

from typing import Any

import pytest

from agents.contract import container_spec, rank_of
from agents.desired import DesiredApp
from agents.runtime.interface import ContainerSpec, Key
from events.kinds import Placed
from events.spec import check_spec
from tests.core.records import document

PLACEMENT = [
    Placed(slot=4, node="b", address="10.0.0.2", port=20009),
    Placed(slot=1, node="a", address="10.0.0.1", port=20001),
    Placed(slot=2, node="b", address="10.0.0.2", port=20002),
]


def made(slot: int, *, resumes: bool = False, mount: str = "", **fields: Any) -> ContainerSpec:
    app = DesiredApp(
        check_spec(document(**fields)),
        generation=3,
        placement=PLACEMENT,
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
    app = DesiredApp(
        check_spec(document()), generation=3, placement=PLACEMENT, master_port=1, released=True, tenant="t"
    )
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
