"""The builder, as it runs in containers: built once, used by all, and a failure says which command failed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest

from agents import environment as plan
from agents import environment_builder
from agents.environment import Building, Environment, Environments, built_in
from agents.runtime.interface import ENVIRONMENT_MOUNT, Key
from events.spec import AppSpec, check_spec
from tests.core.records import document

PYTHON = sys.executable


def package(folder: Path, name: str, version: str = "1.0", requires: str = "") -> None:
    """Write a wheel with a module."""
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {requires}\n" if requires else ""
    )
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": about,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\nrun-{name} = {name}:main\n",
    }
    files[f"{name}.py"] += "def main():\n    import sys\n    print('runs in', sys.prefix)\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with pip and `big`, and no index from which that could be installed again."""
    folder = tmp_path_factory.mktemp("base") / "a venv"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", folder], check=True)
    (own,) = (folder / "lib").glob("python*/site-packages")
    (own / "pip").symlink_to(Path(pip.__file__).parent)  # A copy would take seconds.
    package(folder / "wheels", "big")
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-index", "big"]
    subprocess.run([*install, "--find-links", str(folder / "wheels")], check=True)
    return folder


def told(command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    """Run a container to its end, with no index of packages but what `env` names."""
    cleared = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**cleared, **env})


USES = (
    "import sys, big, small; print(big.VERSION, small.VERSION, big.__file__.startswith(sys.prefix), "
    "small.__file__.startswith(sys.prefix), flush=True)"
)


def test_requirements_build_on_the_packages_of_a_virtual_environment(tmp_path: Path, base: Path) -> None:
    environment, wheels = tmp_path / "environment", tmp_path / "wheels"
    environment.mkdir()
    package(wheels, "small", requires="big>=1")
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {wheels}\n")
    spec = check_spec(
        document(
            command=["sh", "-c", f'python -c "{USES}" && run-big && run-small && command -v pip'],
            requirements=["small"],
            python=f"{base}/bin/python",
        )
    )
    done = told(made(tmp_path, "one", spec, environment=environment), PIP_CONFIG_FILE=str(tmp_path / "pip.conf"))
    assert done.returncode == 0, done.stdout + done.stderr
    venv = environment / "venv"
    said = done.stdout.splitlines()[-4:]
    assert said == ["1.0 1.0 False True", f"runs in {venv}", f"runs in {venv}", f"{venv}/bin/pip"]
    assert (base / "bin" / "run-big").read_text() != (venv / "bin" / "run-big").read_text()
    # Nothing has changed, so nothing is built, and no index is asked.
    again = told(made(tmp_path, "two", spec, environment=environment), PIP_CONFIG_FILE=os.devnull)
    assert (again.returncode, again.stdout.splitlines()) == (0, said)


def test_an_environment_is_built_again_when_what_it_builds_on_has_changed_and_none_uses_it(
    tmp_path: Path, base: Path
) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    spec = check_spec(
        document(command=["sh", "-c", "echo up; read -r _"], setup=["echo x >> ../built"], python=f"{base}/bin/python")
    )
    own = next((base / "lib").glob("python*/site-packages"))

    def started(name: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            made(tmp_path, name, spec, environment=environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=environment / "..",
        )  # fmt: skip
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "up\n":
            assert line, f"{name} ended"
        return process

    def builds() -> int:
        return (tmp_path / ".." / "built").read_text().count("x")

    one = started("one")
    assert builds() == 1
    (own / "more-1.0.dist-info").mkdir()
    two = started("two")
    assert builds() == 1, "it is in use"
    for process in (one, two):
        process.communicate("\n")
    three = started("three")
    assert builds() == 2
    three.communicate("\n")
    (own / "more-1.0.dist-info").rmdir()


def test_uv_asks_whom_pip_would_ask() -> None:
    assert environment_builder.for_uv(
        {"PIP_INDEX_URL": "https://pypi.lab/simple", "UV_INDEX": "x", "PIP_EXTRA_INDEX_URL": "y"}
    ) == {
        "UV_SYSTEM_CERTS": "1",
        "UV_NATIVE_TLS": "1",
        "UV_DEFAULT_INDEX": "https://pypi.lab/simple",
    }


def test_the_path_of_a_python_alone_builds_nothing_for_plain_processes(tmp_path: Path) -> None:
    bare, more = (check_spec(document(python=PYTHON, requirements=some)) for some in ([], ["numpy"]))
    plain, mounted = (Environments(tmp_path, mounted=mounted) for mounted in (False, True))
    assert plain.of(bare, "me") is None
    assert mounted.of(bare, "me") is not None
    keys = {
        plain.of(check_spec(document(python=path, requirements=["numpy"])), "me") for path in ("", PYTHON, "/b", "3.11")
    }
    assert len({one.key for one in keys if one is not None}) == 4
    assert plain.of(more, "me") in keys


def made(folder: Path, name: str, spec: AppSpec, *, generation: str = "app-1", environment: Path) -> list[str]:
    """A container's private folder as the agent makes it; return its command."""
    where = folder / name
    where.mkdir()
    one = Environment(plan.key_of(spec, "me", ""), str(environment), str(environment), site_packages=False)
    for file, text in plan.files(spec, one, generation).items():
        (where / file).write_text(text)
    return [PYTHON, *plan.wrapped(tuple(spec.command), one, str(where))[1:]]


@pytest.mark.soak
def test_two_containers_at_once_build_once_and_a_third_finds_it(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    script = 'cat "$VIRTUAL_ENV/count"; python -c "import sys; print(sys.prefix)"; exec 1>&-; read -r _'
    spec = check_spec(
        document(command=["sh", "-c", script], setup=['echo built >> "$VIRTUAL_ENV/count"', "echo says something"])
    )
    running = [
        subprocess.Popen(
            made(tmp_path, name, spec, environment=environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    said = [process.stdout.read() for process in running if process.stdout is not None]
    for text in said:
        assert text.splitlines()[-2:] == ["built", str(environment / "venv")]
    assert sum("says something" in text for text in said) == 1, "what it prints is in the log of the one that builds"
    seconds = [built_in(tmp_path / name) for name in ("one", "two")]
    assert all(one is not None and one > 0 for one in seconds)
    environments = Environments(tmp_path, mounted=False, most=0)
    for left in ("one", "two"):
        shutil.rmtree(tmp_path / left)
    assert environments.collect() == [], "it is in use"
    for process in running:
        process.communicate("\n")
        assert process.returncode == 0
    third = made(tmp_path, "three", spec, generation="app-2", environment=environment)
    done = subprocess.run(third, input="", capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["built", str(environment / "venv")]
    assert built_in(tmp_path / "three") == 0.0
    shutil.rmtree(tmp_path / "three")
    assert environments.collect() == ["environment"]


@pytest.mark.soak
def test_a_failure_reaches_the_generation_and_the_next_one_retries(tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    spec = check_spec(document(command=["true"], setup=["echo try >> ../tries; false"]))
    (tmp_path / "tries").touch()

    def run(name: str, generation: str) -> subprocess.CompletedProcess[str]:
        command = made(tmp_path, name, spec, generation=generation, environment=environment)
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / name, check=False)

    for number, (generation, tries) in enumerate((("app-1", 1), ("app-1", 1), ("app-2", 2))):
        done = run(f"c{number}", generation)
        assert done.returncode == environment_builder.FAILED
        assert done.stderr.splitlines()[-1].startswith("dorm: the environment can't be built: `echo try")
        assert len((tmp_path / "tries").read_text().splitlines()) == tries
        assert built_in(tmp_path / f"c{number}") is None


@pytest.mark.parametrize(("python", "why"), [("3.99", "there is no Python 3.99"), ("/no/python", "there is no Python")])
def test_a_python_that_is_not_there(tmp_path: Path, python: str, why: str) -> None:
    (tmp_path / "environment").mkdir()
    spec = check_spec(document(command=["true"], python=python))
    command = made(tmp_path, "one", spec, environment=tmp_path / "environment")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == environment_builder.FAILED
    assert why in done.stderr


def test_each_owner_and_base_has_its_own_environment(tmp_path: Path) -> None:
    spec = check_spec(document(requirements=["numpy"]))
    keys = {plan.key_of(spec, owner, base) for owner in ("me", "you") for base in ("a", "b")}
    assert len(keys) == 4
    assert plan.key_of(check_spec(document()), "me", "a") == ""
    mounted, plain = (Environments(tmp_path, mounted=mounted).of(spec, "me") for mounted in (True, False))
    assert mounted is not None
    assert plain is not None
    (mount,) = plan.mounts(mounted)
    assert (mount.source, mount.target) == (mounted.source, ENVIRONMENT_MOUNT)
    assert plan.mounts(plain) == ()
    files = plan.files(spec, plain, "app-3")
    assert json.loads(files[environment_builder.PLAN])["requirements"] == ["numpy"]


def test_any_text_in_the_file_of_a_build_is_read_safely(tmp_path: Path) -> None:
    file = tmp_path / environment_builder.READY
    for text, seconds in (("1.5", 1.5), ("nan", 0.0), ("-1", 0.0), ("words", 0.0), ("1e300", 0.0)):
        file.write_text(text)
        assert built_in(tmp_path) == seconds
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert built_in(tmp_path) is None


@pytest.mark.soak
def test_packages_that_cannot_be_installed_are_named_by_a_short_command(tmp_path: Path) -> None:
    """The end of what it prints is why the app failed: paths of the node would leave no room for the cause."""
    (tmp_path / "environment").mkdir()
    spec = check_spec(document(command=["true"], requirements=["no-such-package-of-anyone==1"]))
    command = made(tmp_path, "one", spec, environment=tmp_path / "environment")
    nowhere = {**os.environ, "PIP_NO_INDEX": "1", "UV_NO_INDEX": "1", "UV_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=nowhere)
    assert done.returncode == environment_builder.FAILED
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"dorm: the environment can't be built: `(uv|python -m) pip install -r requirements.txt` ended with exit code \d+",
        last,
    ), last
    assert "no-such-package-of-anyone" in done.stderr
    assert str(tmp_path) not in done.stdout


@pytest.mark.parametrize(("building", "pause_s"), [(1, 0.2), (16, 0.2), (64, 0.8)])
async def test_many_that_build_without_end_cost_no_more_looks_than_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, building: int, pause_s: float
) -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr("agents.environment.asyncio.sleep", pause)
    watched = Building(lambda: None)
    async with asyncio.TaskGroup() as tasks:
        assert all(watched.waits(Key("app", 1, slot), tmp_path, tasks) for slot in range(building))
    assert (len(paused), max(paused)) == (building, pause_s)


def test_what_a_command_of_the_last_build_mounted_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("venv", "venv2"):
        (tmp_path / name / "a data set").mkdir(parents=True)
    listed = f"36 35 98:0 /x {tmp_path}/venv/a\\040data\\040set rw - ext3 /dev/root rw\n"
    (tmp_path / "mountinfo").write_text(listed)
    real = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, *how, **more: real(
            tmp_path / "mountinfo" if path == "/proc/self/mountinfo" else path, *how, **more
        ),
    )
    with pytest.raises(environment_builder.Failed, match="a data set"):
        environment_builder.remove(str(tmp_path / "venv"))
    assert (tmp_path / "venv" / "a data set").is_dir()
    environment_builder.remove(str(tmp_path / "venv2"))
    assert not (tmp_path / "venv2").exists()
