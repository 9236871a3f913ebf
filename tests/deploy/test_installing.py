"""`dorm deploy install` by hand: once, again, after changes of the settings and of the files; and what it refuses."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
import yaml

from dorm.deploy import layout
from tests.cli.conftest import here  # noqa: F401 - a fixture
from tests.deploy.made import PROGRAM, document

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tests.cli.conftest import Dorm


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    root = tmp_path / "machine"
    root.mkdir()
    return root


def written(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "deploy.yaml"
    file.write_text(yaml.safe_dump(document(trust=False, **changes)))
    return file


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_install_again_and_again(here: Dorm, machine: Path, tmp_path: Path) -> None:  # noqa: F811
    def install(*more: str, **changes: Any) -> tuple[int, str, str]:
        return here("deploy", "install", written(tmp_path, **changes), "--machine", "n1", "--root", machine, *more)

    code, out, err = install("--dry-run")
    assert (code, err) == (0, "")
    assert "would write" in out
    assert files(machine) == {}

    code, out, err = install()
    assert (code, err) == (0, "")
    units = "dorm-nats.service dorm-master.service dorm-api.service dorm-webhooks.service dorm-backup.timer"
    assert f"systemctl enable --now {units}" in out
    assert "systemctl restart" not in out
    first = files(machine)
    assert "etc/dorm/nats.conf" in first

    code, out, _ = install()
    assert (code, "all 9 files are up to date" in out) == (0, True)
    assert files(machine) == first

    # Another setting changes one file; a part that goes takes its files along.
    code, out, _ = install("--dry-run", store_limit="300GiB")
    assert (code, "+  max_file_store: 322122547200" in out) == (0, True)
    code, out, _ = install(store_limit="300GiB", api=[])
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["changed", "changed", "removed"]
    assert "systemctl restart dorm-nats.service\n" in out  # `enable --now` leaves what runs as it is.
    assert "systemctl stop dorm-api.service\n" in out
    assert "etc/systemd/system/dorm-api.service" not in files(machine)

    # A change by hand stops it before anything is written.
    unit = machine / "etc/systemd/system/dorm-master.service"
    unit.write_text(unit.read_text() + "# mine\n")
    before = files(machine)
    code, out, err = install()
    assert (code, out) == (1, "")
    assert "dorm-master.service.d/local.conf" in err
    assert "[deploy.file.edited]" in err
    assert err.count("\n") == 1
    assert files(machine) == before
    code, out, _ = install("--force")
    assert (code, "replaced" in out, b"# mine" in unit.read_bytes()) == (0, True, False)
    assert "systemctl restart dorm-nats.service dorm-master.service\n" in out
    # A configuration has no drop-ins.
    (machine / "etc/dorm/nats.conf").write_text("mine")
    code, _, err = install()
    assert (code, "changed by hand" in err, ".d/local.conf" in err) == (1, True, False)


def test_installed_keys_are_readable_only_by_their_user(here: Dorm, machine: Path, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "trusted.yaml"
    file.write_text(yaml.safe_dump(document()))
    code, out, err = here("deploy", "keys", file, tmp_path / "lab", "--admin", "root")
    assert (code, err) == (0, "")
    assert "new certificates: n1, n2, n3" in out
    code, out, _ = here("deploy", "keys", file, tmp_path / "lab")
    assert (code, "new certificates" in out) == (0, False)
    install = ("deploy", "install", file, "--machine", "n1", "--root", machine)
    code, _, err = here(*install)
    assert (code, "[deploy.keys.missing]" in err) == (2, True)
    code, _, err = here(*install, "--keys", tmp_path / "absent")
    assert (code, "[deploy.keys.missing]" in err) == (1, True)
    code, out, err = here(*install, "--keys", tmp_path / "lab")
    assert (code, err) == (0, "")
    secret = machine / layout.KEYS.lstrip("/") / "server.key"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert b"PRIVATE" in secret.read_bytes()
    # A dry run shows no secret.
    secret.write_text("old\n")
    code, out, _ = here(*install, "--keys", tmp_path / "lab", "--dry-run")
    assert (code, "changed by hand" in out, "PRIVATE" in out) == (0, True, False)
    # The running server reads a renewed certificate, and the API sees it by itself.
    for folder in (layout.KEYS, layout.API):
        for name in ("server.pem", "server.key"):
            (machine / folder.lstrip("/") / name).write_text("earlier\n")
    code, out, _ = here(*install, "--keys", tmp_path / "lab", "--force")
    assert (code, "systemctl restart" in out, "dorm-nats-renewed.path" in out) == (0, False, True)
    # Changed accounts are what `dorm user` does.
    (machine / layout.KEYS.lstrip("/") / "accounts.conf").write_text("")
    secret.unlink()
    assert here(*install, "--keys", tmp_path / "lab")[0] == 0


def test_missing_parts_are_reported_before_anything_is_written(here: Dorm, machine: Path, tmp_path: Path) -> None:  # noqa: F811
    nodes = {"n1": {"runtime": "process"}}
    given = written(
        tmp_path, machines={"n1": "192.0.2.1"}, servers=["n1"], masters=["n1"], api=[], backup={}, nodes=nodes
    )
    install = ("deploy", "install", given, "--machine", "n1", "--root", machine, "--check")
    code, out, err = here(*install)
    assert (code, out, files(machine)) == (1, "", {})
    lines = err.splitlines()
    codes = ["deploy.program.missing", "deploy.program.missing", "deploy.mount.missing", "deploy.address.elsewhere"]
    assert [line.rsplit("[", 1)[1].rstrip("]") for line in lines] == codes
    assert "there is no such folder" in lines[2]
    (machine / "mnt/shared/dorm").mkdir(parents=True)
    code, _, err = here(*install)
    assert (code, "nothing is mounted there" in err) == (1, True)


def test_a_complete_machine_passes_the_check(here: Dorm, machine: Path, tmp_path: Path) -> None:  # noqa: F811
    bin_folder = machine / PROGRAM.lstrip("/") / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("dorm", "nats-server"):
        (bin_folder / name).symlink_to(f"{PROGRAM}/bin/{name}")
    alone = {"machines": {"n1": "127.0.0.1"}, "servers": ["n1"], "masters": ["n1"], "api": [], "backup": {}}
    given = written(tmp_path, **alone, nodes={"n1": {}}, mount="none", program=PROGRAM)
    code, _, err = here("deploy", "install", given, "--machine", "n1", "--root", machine, "--check")
    assert (code, err) == (0, "")


def test_each_failure_is_reported_in_one_line(here: Dorm, machine: Path, tmp_path: Path) -> None:  # noqa: F811
    given = written(tmp_path)
    code, _, err = here("deploy", "install", given, "--machine", "n2", "--root", machine)
    assert (code, err) == (0, "")
    wrong = [
        (("--machine", "n1", "--root", machine), 1, "deploy.machine.other"),
        (("--machine", "n9", "--root", machine), 1, "deploy.machine.unknown"),
        (("--machine", "n1", "--root", given), 1, "deploy.not_writable"),
    ]
    for words, expected, text in wrong:
        code, out, err = here("deploy", "install", given, *words)
        assert (code, out, err.count("\n")) == (expected, "", 1), (words, err)
        assert f"[{text}]" in err
    (machine / "etc/dorm/deployed.json").write_text("{")
    code, _, err = here("deploy", "install", given, "--machine", "n2", "--root", machine)
    assert (code, "[deploy.record.unreadable]" in err) == (1, True)
    given.write_text("cluster: [")
    code, _, err = here("deploy", "install", given)
    assert (code, "[file.not_yaml]" in err) == (2, True)
    code, _, err = here("deploy", "keys", written(tmp_path), tmp_path / "lab")
    assert (code, "[deploy.keys.open]" in err) == (2, True)
    assert not os.path.exists(tmp_path / "lab")


def test_the_example_settings_can_be_installed(here: Dorm, machine: Path, tmp_path: Path) -> None:  # noqa: F811
    code, out, err = here("deploy", "example")
    assert (code, err) == (0, "")
    file = tmp_path / "example.yaml"
    file.write_text(out)
    code, out, err = here("deploy", "install", file, "--machine", "gpu-7", "--root", machine)
    assert (code, err) == (0, "")
    assert "systemctl enable --now dorm-agent.service" in out
