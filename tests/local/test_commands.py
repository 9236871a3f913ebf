"""Commands as typed: their specs, names, and the nodes that can run them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dorm.core.state import Node
from dorm.local.commands import (
    CommandRefused,
    Typed,
    check_nodes,
    document,
    free_name,
    made_name,
    shell_python,
    with_shell_python,
)
from dorm.local.spec_files import read_fields
from events.spec import check_spec

URL = "nats://127.0.0.1:4222"


def node(name: str, address: str = "127.0.0.1", runtime: str = "process", **more: object) -> Node:
    one = Node(id=name, address=address, capacity={"cpu": 2000}, labels={}, ports=(20000, 20099), runtime=runtime)
    for field, value in more.items():
        setattr(one, field, value)
    return one


def typed(*words: str, **more: str | tuple[str, ...]) -> Typed:
    return Typed(command=words or ("python3", "train.py"), demand={"cpu": "1"}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("python", "src/Train_v2.py", "--lr", "1"), "train-v2"),
        (("python", "-m", "pkg.fit"), "fit"),
        (("./bin/go.sh",), "go"),
        (("/usr/bin/sleep", "5"), "sleep"),
        (("***",), "app"),
        (("x" * 90,), "x" * 40),
    ],
)
def test_a_name_is_made_from_the_command(words: tuple[str, ...], name: str) -> None:
    assert made_name(words) == name
    check_spec({"name": made_name(words), "command": ["true"], "demand": {"cpu": 1}})


def test_a_name_that_is_taken_gets_the_first_free_number() -> None:
    assert free_name("train", {"train", "train-2", "train-4"}) == "train-3"
    assert free_name("train", {"other"}) == "train"


def test_it_runs_here_with_the_programs_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "fit"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.chdir(tmp_path)
    assert document(typed("fit", "--fast"), "a")["command"] == ["env", "-C", str(tmp_path), str(program), "--fast"]
    # The interpreter of this program is the one of the nodes that it starts.
    assert document(typed("python3"), "a")["command"][3].startswith(sys.prefix)
    with pytest.raises(CommandRefused) as refused:
        document(typed("no-such-program"), "a")
    assert refused.value.code == "run.program.not_found"


def test_in_a_named_folder_or_an_image_the_command_is_unchanged() -> None:
    assert document(typed(folder="/srv/app"), "a")["command"] == ["env", "-C", "/srv/app", "python3", "train.py"]
    spec = document(typed(image="app:1"), "a")
    assert (spec["command"], spec["image"]) == (["python3", "train.py"], "app:1")
    spec = document(typed(workdir=".", settings=("image=app:1",)), "a")
    assert (spec["command"], spec["image"]) == (["python3", "train.py"], "app:1")


@pytest.mark.parametrize(
    ("one", "wanted", "code"),
    [
        (node("n1"), typed(), ""),
        (node("n1", "203.0.113.7"), typed(), "run.folder.elsewhere"),
        (node("n1", "203.0.113.7", condition="left"), typed(), ""),
        (node("n1", "203.0.113.7"), typed(folder="/srv/app"), ""),
        (node("n1", runtime="docker 28.1"), typed(), "run.image.missing"),
        (node("n1", runtime="docker 28.1"), typed(folder="/srv/app"), "run.image.missing"),
        (node("n1", "203.0.113.7", runtime="docker 28.1"), typed(image="app:1"), ""),
        (node("n1", runtime="docker 28.1"), typed(workdir=".", settings=("image=app:1", "demand.cpu=2")), ""),
    ],
)
def test_nodes_that_could_not_run_it_refuse_it(one: Node, wanted: Typed, code: str) -> None:
    if not code:
        check_nodes(wanted, [node("n0"), one], URL)
        return
    with pytest.raises(CommandRefused, match=r"^n1 runs? ") as refused:
        check_nodes(wanted, [node("n0"), one], URL)
    assert refused.value.code == code


def test_loopback_addresses_of_a_distant_cluster_are_not_this_machine() -> None:
    with pytest.raises(CommandRefused) as refused:
        check_nodes(typed(), [node("n0")], "nats://203.0.113.9:4222,nats://203.0.113.10:4222")
    assert refused.value.code == "run.folder.elsewhere"


def test_fields_and_settings_are_in_its_spec_and_settings_win() -> None:
    one = Typed(
        command=("python3", "train.py"),
        demand={"cpu": "1"},
        folder="/srv",
        fields={"env": {"LR": "1"}, "max_runtime": "2h"},
        settings=("env.LR=2", "weight=3", "max_runtime=", "python=3.12"),
    )
    spec = document(one, "a")
    assert (spec["env"], spec["weight"], spec["python"]) == ({"LR": "2"}, 3, "3.12")
    assert "max_runtime" not in spec
    check_spec(spec)


@pytest.mark.parametrize("pair", ["weight", "=1", "env.=1", "weight.a=1", "env=[", "notify.url"])
def test_settings_that_are_malformed(pair: str) -> None:
    one = Typed(command=("true",), demand={"cpu": "1"}, folder="/srv", settings=(pair,))
    with pytest.raises(CommandRefused, match=r"^--set "):
        document(one, "a")


def test_a_command_with_an_environment_takes_its_programs_and_not_those_of_this_shell() -> None:
    for fields in ({"requirements": ["einops"]}, {"setup": ["true"]}):
        one = Typed(command=("python3", "train.py"), demand={"cpu": "1"}, workdir=".", fields=fields)
        assert document(one, "a")["command"] == ["python3", "train.py"]
    one = Typed(command=("python3", "train.py"), demand={"cpu": "1"}, workdir=".", settings=("python=3.11",))
    assert document(one, "a")["command"] == ["python3", "train.py"]


def test_volumes_and_files_with_a_command(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=file\nB=file\n")
    (tmp_path / "requirements.txt").write_text("einops>=0.8\n")
    fields = read_fields(
        tmp_path,
        lambda text: None,
        env={"A": "typed"},
        env_files=[".env"],
        requirements="requirements.txt",
        volumes=["datasets", "scratch:/scratch:rw", "models:/m", "tmp:rw"],
    )
    assert fields == {
        "env": {"A": "typed", "B": "file"},
        "requirements": ["einops>=0.8"],
        "volumes": [
            {"name": "datasets"},
            {"name": "scratch", "at": "/scratch", "read_only": False},
            {"name": "models", "at": "/m"},
            {"name": "tmp", "read_only": False},
        ],
    }
    check_spec({"name": "a", "command": ["true"], "demand": {"cpu": 1}, **fields})
    assert read_fields(tmp_path, lambda text: None, env={}) == {}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of programs of a virtual environment that is active."""
    programs = tmp_path / "my venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3"):
        (programs / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return programs


def test_the_python_of_a_shell_is_the_first_in_its_path(
    shell: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell_python() == str(shell / "python3")
    assert shell_python("python") == str(shell / "python")
    assert shell_python("python3.99") == ""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shell_python() == ""


@pytest.mark.parametrize(
    ("script", "answer"),
    [('exec {python} "$@"', True), ("exit 1", False), ("echo nonsense", False), ("printf '/a\\n/b\\n'", False)],
)
def test_a_script_that_chooses_a_python_is_asked_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, answer: bool
) -> None:
    shim = tmp_path / "python"
    shim.write_text(f"#!/bin/sh\n{script.format(python=sys.executable)}\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shell_python() == (sys.executable if answer else "")


def test_a_command_gets_the_python_of_the_shell_where_all_nodes_are_this_machine(shell: Path) -> None:
    for words in (("python", "train.py"), ("bash", "run.sh"), ("sh", "-c", "python train.py")):
        spec = document(typed(*words, workdir="."), "a")
        assert Path(spec["python"]).parent == shell
        assert spec["command"][1:] == list(words[1:])
        check_spec(spec)
    assert document(typed("python3", "a.py", workdir="."), "a")["command"][0] == "python3"
    assert document(typed("bash", "a.sh", workdir="."), "a")["command"][0].endswith("/bin/bash")
    one = Typed(command=("python3",), demand={"cpu": "1"}, workdir=".", fields={"requirements": ["einops"]})
    assert document(one, "a")["python"] == str(shell / "python3"), "its packages are built on"
    for other in (
        typed(workdir=".", image="app:1"),
        typed(workdir=".", settings=("image=app:1",)),
        Typed(command=("python3",), demand={"cpu": "1"}, workdir=".", fields={"env": {"PATH": "/opt/bin"}}),
    ):
        assert "python" not in document(other, "a")
    assert document(typed(workdir=".", settings=("python=3.12",)), "a")["python"] == "3.12"
    assert "python" not in document(typed(workdir="."), "a", local=False)


def test_a_spec_in_a_file_gets_it_too(shell: Path) -> None:
    def python(nodes: list[Node], **fields: object) -> str:
        return with_shell_python(
            check_spec({"name": "a", "command": ["x"], "demand": {"cpu": 1}, **fields}), nodes, URL
        ).python

    here = [node("n0"), node("n1")]
    assert python(here) == python(here, image="app:1") == str(shell / "python3")
    assert python(here, requirements=["einops"]) == str(shell / "python3")
    assert python([*here, node("gone", "203.0.113.7", condition="left")]) == str(shell / "python3")
    assert python(here, python="3.12") == "3.12"
    assert python(here, env={"PATH": "/opt/bin"}) == ""
    for nodes in ([], [*here, node("far", "203.0.113.7")], [*here, node("docker", runtime="docker 28.1")]):
        assert python(nodes) == ""
