"""Spec and placement in; environment, files and command out."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from agents import engine_launcher
from agents.runtime.interface import ContainerSpec, Key, check_spec
from events.kinds import Placed
from events.spec import ENGINES
from tests.agents.engines.places import PLACEMENT, SLOTS, prepared

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("engine", ENGINES)
def test_a_container_gets_the_same_launch_again_and_only_files_that_a_runtime_takes(engine: str) -> None:
    for slot in SLOTS:
        launch = prepared(slot, engine)
        assert launch == prepared(slot, engine)
        assert all(name.startswith("dorm-") for name in launch.files)
        env = {**launch.defaults, **launch.env}
        check_spec(ContainerSpec(Key("app-x", 3, slot), "", launch.command, env, {}, files=launch.files))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_takes_any_size_of_partition(engine: str) -> None:
    """A spec that was checked by another release may have fewer containers than its roles."""
    for size in (1, 2, 3, 50):
        placement = tuple(Placed(slot=s, node=f"n{s % 5}", address="10.0.0.1", port=20000 + s) for s in range(size))
        assert all(prepared(placed.slot, engine, placement).command for placed in placement)


def test_plain_adds_nothing() -> None:
    launch = prepared(4, "plain")
    assert (launch.command, launch.env, launch.defaults, launch.files) == (("work", "--hard"), {}, {}, {})


def test_elastic_announces_the_whole_generation_as_its_first_membership() -> None:
    launch = prepared(4, "elastic")
    (name,) = launch.files
    assert launch.env == {"DORM_MEMBERS": f"/dorm/run/{name}"}
    said = json.loads(launch.files[name])
    assert (said["generation"], said["membership"]) == (3, 1)
    assert [member["slot"] for member in said["members"]] == SLOTS
    assert said["members"][2] == {"slot": 4, "host": "10.0.0.2", "port": 20009}


def test_torchrun_with_one_process_needs_no_launcher() -> None:
    launch = prepared(4, "torchrun")
    assert launch.command == ("work", "--hard")
    assert (launch.env["RANK"], launch.env["WORLD_SIZE"], launch.env["LOCAL_RANK"]) == ("2", "4", "0")
    assert (launch.env["MASTER_ADDR"], launch.env["MASTER_PORT"]) == ("10.0.0.1", "20042")


def test_torchrun_starts_several_processes_in_each_container() -> None:
    launch = prepared(4, "torchrun", processes=8)
    words = " ".join(launch.command)
    assert "--nnodes 4 --nproc-per-node 8 --node-rank 2 --master-addr 10.0.0.1 --master-port 20042" in words
    assert launch.command[-3:] == ("--no-python", "work", "--hard")
    assert launch.command[0] == "torchrun"
    assert launch.env == {}, "torchrun sets the workers' variables itself"


@pytest.mark.parametrize("python", ["python", "python3.11", "/opt/venv/bin/python3"])
def test_torchrun_is_that_of_the_commands_own_interpreter(python: str) -> None:
    launch = prepared(4, "torchrun", processes=8, command=(python, "train.py"))
    assert launch.command[:4] == (python, "-m", "torch.distributed.run", "--nnodes")
    assert launch.command[-3:] == ("--no-python", python, "train.py")


def test_torchruns_own_rendezvous_is_hosted_by_the_first_container() -> None:
    hosts = []
    for slot in SLOTS:
        words = " ".join(prepared(slot, "torchrun", rendezvous="c10d", restarts=2).command)
        assert "--rdzv-backend c10d --rdzv-endpoint 10.0.0.1:20042 --rdzv-id app-x-3" in words
        assert "--max-restarts 2" in words
        hosts.append("is_host=1" in words)
    assert hosts == [True, False, False, False]


def test_mpi_has_one_host_for_each_container_even_if_two_share_a_node() -> None:
    first, other = prepared(1, "mpi", processes=2), prepared(4, "mpi", processes=2)
    hosts = first.files["dorm-hostfile"].splitlines()
    assert hosts == [f"{engine_launcher.HOST_PREFIX}{rank} slots=2" for rank in range(4)]
    words = " ".join(first.command)
    assert words.startswith("python3 /dorm/run/dorm-launcher.py head 10.0.0.1 20042 4 mpirun -n 8 --hostfile")
    assert first.command[-2:] == ("work", "--hard")
    assert other.command == ("python3", "/dorm/run/dorm-launcher.py", "worker", "10.0.0.1", "20042", "2")
    assert first.env["DORM_HOSTFILE"] == "/dorm/run/dorm-hostfile"
    assert first.files == other.files


def test_an_app_may_choose_another_transport_and_not_another_way_to_its_containers() -> None:
    launch = prepared(1, "mpi")
    assert "OMPI_MCA_btl" in launch.defaults
    assert {"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"} <= set(launch.env)


def roles(engine: str, variable: str, **options: Any) -> list[Any]:
    return [prepared(slot, engine, **options).env[variable] for slot in SLOTS]


def test_servers_go_to_different_nodes_first() -> None:
    assert roles("ps", "DMLC_ROLE") == ["worker", "worker", "server", "worker"]
    assert roles("ps", "DMLC_ROLE", servers=2) == ["worker", "worker", "server", "server"]
    assert roles("ps", "DMLC_ROLE", servers=3) == ["worker", "server", "server", "server"]


@pytest.mark.parametrize(
    ("size", "ratio", "servers"), [(4, 1, 2), (4, 3, 1), (5, 3, 2), (8, 3, 2), (9, 3, 3), (100, 9, 10)]
)
def test_the_number_of_servers_follows_the_size_of_the_partition(size: int, ratio: int, servers: int) -> None:
    placement = tuple(Placed(slot=s, node="n", address="10.0.0.1", port=20000 + s) for s in range(size))
    env = prepared(0, "ps", placement, workers_per_server=ratio).env
    assert (env["DMLC_NUM_SERVER"], env["DMLC_NUM_WORKER"]) == (str(servers), str(size - servers))


def test_ps_names_what_ps_lite_reads() -> None:
    env = prepared(7, "ps", servers=2).env
    assert (env["DMLC_ROLE"], env["DMLC_SERVER_ID"], env["DMLC_TASK_ID"]) == ("server", "1", "1")
    assert (env["DMLC_PS_ROOT_URI"], env["DMLC_PS_ROOT_PORT"]) == ("10.0.0.1", "20042")
    assert (env["DMLC_NODE_HOST"], env["PORT"]) == ("fd00::3", "20003")
    assert env["DORM_WORKERS"] == "10.0.0.1:20001,10.0.0.1:20002"
    assert env["DORM_SERVERS"] == "10.0.0.2:20009,[fd00::3]:20003"
    assert "DMLC_WORKER_ID" not in env


def test_only_the_first_container_runs_the_scheduler_and_only_if_asked() -> None:
    assert prepared(1, "ps").command == ("work", "--hard")
    assert prepared(4, "ps", scheduler=True).command == ("work", "--hard")
    first = prepared(1, "ps", scheduler=True).command
    assert first[0] == "/bin/sh"
    assert first[-2:] == ("work", "--hard")


def test_the_scheduler_runs_next_to_the_first_container_and_ends_with_it(tmp_path: Path) -> None:
    """Run as a runtime runs it: in its own session, which ends with the command."""
    launch = prepared(1, "ps", scheduler=True)
    script = (
        "echo $DMLC_ROLE >> roles; [ $DMLC_ROLE = scheduler ] || while [ $(wc -l < roles) -lt 2 ]; do sleep 0.01; done"
    )
    command = [*launch.command[:-2], "sh", "-c", script]
    done = subprocess.run(command, env={**os.environ, **launch.env}, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    assert sorted((tmp_path / "roles").read_text().split()) == ["scheduler", "worker"]


def test_tensorflow_without_servers_has_workers_alone() -> None:
    config = json.loads(prepared(7, "tensorflow").env["TF_CONFIG"])
    assert config == {
        "cluster": {"worker": ["10.0.0.1:20001", "10.0.0.1:20002", "10.0.0.2:20009", "[fd00::3]:20003"]},
        "task": {"type": "worker", "index": 3},
    }


def test_tensorflow_with_servers_has_one_chief_and_ends_with_it() -> None:
    launches = [prepared(slot, "tensorflow", servers=1) for slot in SLOTS]
    configs = [json.loads(launch.env["TF_CONFIG"]) for launch in launches]
    tasks = [(config["task"]["type"], config["task"]["index"]) for config in configs]
    assert tasks == [("chief", 0), ("worker", 0), ("ps", 0), ("worker", 1)]
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    assert configs[0]["cluster"]["chief"] == [f"{PLACEMENT[0].address}:{PLACEMENT[0].port}"]
    assert [launch.command[2] for launch in launches] == ["head", "worker", "worker", "worker"]
    assert all(launch.command[-2:] == ("work", "--hard") for launch in launches)
