"""The readers of each machine's files accept them: nats-server, systemd, and Dorm's own commands."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

from dorm.cli.main import app
from dorm.deploy import layout
from dorm.deploy.installing import agent_of, install, installed_agent
from dorm.deploy.keys import keys_of, prepare
from dorm.deploy.rendering import TEMPLATES, command_line, fill, parts, rendered
from dorm.deploy.settings_file import DeploymentError
from dorm.local.nats_server import find_binary
from dorm.security.folder import KeyFolder
from tests.deploy.made import PROGRAM, deployment
from tests.deploy.units import parsed, service, words
from tests.deploy.units import settings as values
from tests.lab.machines.engines import unavailable
from tests.tries import tries

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000_000_000_000
EVERYTHING = {
    "n1": {"runtime": "process", "trust_apps": True},
    "gpu-*": {
        "docker": "tcp://10.0.1.7:2375",
        "gpus": ["0", "1"],
        "labels": {"zone": 'a%n$HOME\\"b"'},
        "capacity": {"cpu": 4, "memory": "8GiB"},
        "ports": "20000-20999",
        "secrets": "/etc/dorm/secrets",
        "allow": ["alice:writable-root"],
        "allow_images": ["registry.lab/**"],
        "container_disk": "64GiB",
        "firewall": True,
        "health_program": "/etc/dorm/healthy",
        "health_every": 300,
        "health_timeout": 45.5,
    },
}
ARCHIVES = {"place": "/mnt/archives", "size": "20GiB", "age": "30d", "keep": "7d", "environment": "/etc/dorm/s3.env"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFolder:
    made = KeyFolder(tmp_path_factory.mktemp("lab") / "security")
    assert prepare(deployment(), made, "root", NOW) == ["n1", "n2", "n3"]
    return made


def relocated(text: str, root: Path) -> str:
    """A file's text for a machine whose file system is at `root`."""
    for place in (layout.CONFIGURATION, layout.DATA, layout.TMPFILES):
        text = text.replace(place, f"{root}{place}")
    return text


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("trust", [False, True])
def test_nats_servers_accept_their_configuration(trust: bool, servers: int, keys: KeyFolder, tmp_path: Path) -> None:
    found = deployment(trust=trust, servers=["n1", "n2", "n3"][:servers])
    install(tmp_path, "n1", [*rendered(found, "n1"), *(keys_of(found, "n1", keys) if trust else [])])
    file = tmp_path / layout.NATS_CONFIGURATION.lstrip("/")
    file.write_text(relocated(file.read_text(), tmp_path))
    done = subprocess.run([find_binary(), "-t", "-c", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is valid" in done.stderr
    assert "sync_interval: always" in file.read_text()
    assert ("accounts.conf" in file.read_text(), "routes" in file.read_text()) == (trust, servers > 1)


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        unavailable("there is no systemd-analyze")
    found = deployment(program=PROGRAM, nodes=EVERYTHING, archives=ARCHIVES)
    install(tmp_path, "n1", rendered(found, "n1"))
    units = sorted(map(str, (tmp_path / layout.UNITS.lstrip("/")).iterdir()))
    assert len(units) == 11
    assert _complaints(units) == ""
    # What it says of a unit with a wrong path is as clear as a line can be.
    wrong = [
        file for file in rendered(deployment(program="/opt/absent"), "n1") if file.path.endswith("dorm-master.service")
    ]
    (tmp_path / "dorm-master.service").write_bytes(wrong[0].content)
    assert "/opt/absent/bin/dorm is not executable" in _complaints([str(tmp_path / "dorm-master.service")])


def _complaints(units: list[str]) -> str:
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    # On a machine without Docker its unit is missing, and other units of this machine are not ours.
    lines = [line for line in done.stderr.splitlines() if "docker.service" not in line and "dorm" in line]
    return "\n".join(lines)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("machine", ["n1", "n2", "gpu-7"])
def test_commands_know_their_options(machine: str, trust: bool) -> None:
    found = deployment(nodes=EVERYTHING, trust=trust, archives=ARCHIVES)
    seen = []
    for file in rendered(found, machine):
        if not file.path.endswith(".service") or "ExecStart=/opt/dorm/bin/dorm" not in file.content.decode():
            continue
        _, name, *options = service(file.content.decode()).command
        program: Any = get_command(app)
        context = program.make_context("dorm", [], resilient_parsing=True)
        command = program.get_command(context, name)
        if name == "webhooks":
            context = command.make_context(name, [], parent=context, resilient_parsing=True)
            name, *options = options
            command = command.get_command(context, name)
        assert command.make_context(name, list(options), parent=context).args == []
        seen.append(name)
    assert seen == {"n1": ["master", "serve", "run", "backup", "agent"], "n2": ["master"], "gpu-7": ["agent"]}[machine]


def test_an_agent_has_all_of_its_settings() -> None:
    (unit,) = [file for file in rendered(deployment(nodes=EVERYTHING), "gpu-7") if "agent" in file.path]
    started = service(unit.content.decode())
    text = json.dumps(started.command)
    for option, value in (
        ("--gpu", "1"),
        ("--label", 'zone=a%n$HOME\\"b"'),
        ("--capacity", "cpu=4,memory=8GiB"),
        ("--docker", "tcp://10.0.1.7:2375"),
        ("--allow-image", "registry.lab/**"),
        ("--container-disk", "64GiB"),
        ("--firewall", "on"),
        ("--health-program", "/etc/dorm/healthy"),
        ("--health-every", "300"),
        ("--health-timeout", "45.5"),
        ("--checkpoints", "/mnt/shared/dorm"),
    ):
        assert json.dumps([option, value])[1:-1] in text
    found = parsed(unit.content.decode())
    assert started.kill_mode == "process"
    assert values(found, "Unit", "AssertPathIsMountPoint") == ["/mnt/shared/dorm"]
    assert values(found, "Unit", "RequiresMountsFor") == ["/mnt/shared/dorm /var/lib/dorm/node"]
    assert values(found, "Service", "OOMPolicy") == ["continue"]


def test_the_doctor_finds_the_node_by_its_unit(tmp_path: Path) -> None:
    assert installed_agent(tmp_path) is None
    install(tmp_path, "gpu-7", rendered(deployment(nodes=EVERYTHING), "gpu-7"))
    assert installed_agent(tmp_path) == ("gpu-7", layout.NODE, "/mnt/shared/dorm")
    assert agent_of("ExecStart=/opt/dorm/bin/dorm agent --name n1") is None
    assert agent_of('ExecStart=/opt/dorm/bin/dorm agent --name "n1') is None


def test_masters_rotate_the_log_if_the_settings_say_so() -> None:
    found = deployment(archives=ARCHIVES)
    services = [file for file in rendered(found, "n1") if file.path.endswith(".service")]
    units = {os.path.basename(file.path): parsed(file.content.decode()) for file in services}
    (master,) = values(units["dorm-master.service"], "Service", "ExecStart")
    assert "--archives /mnt/archives --rotate-size 20GiB --rotate-age 30d --keep 7d" in master
    assert values(units["dorm-master.service"], "Service", "ReadWritePaths") == ["/var/lib/dorm/master /mnt/archives"]
    for name in ("master", "api", "webhooks", "backup"):
        unit = units[f"dorm-{name}.service"]
        assert "/mnt/archives" in values(unit, "Unit", "RequiresMountsFor")[0].split()
        assert values(unit, "Service", "EnvironmentFile") == ["/etc/dorm/s3.env"]
    (tmpfiles,) = [file.content.decode() for file in rendered(found, "n1") if file.path == layout.TMPFILES]
    assert "d /mnt/archives 0700 dorm dorm -" in tmpfiles
    # An S3 store is not a folder of the machine, and without archives nothing is said of them.
    store = {
        file.path: file.content.decode() for file in rendered(deployment(archives={"place": "s3://lab/logs"}), "n1")
    }
    assert "--archives s3://lab/logs --metrics" in store[f"{layout.UNITS}/dorm-master.service"]
    assert "ReadWritePaths=/var/lib/dorm/master\n" in store[f"{layout.UNITS}/dorm-master.service"]
    assert not any(b"archives" in file.content for file in rendered(deployment(), "n1"))


def test_deliverers_of_webhooks_follow_the_settings(keys: KeyFolder) -> None:
    found = deployment(webhooks={"machines": ["n2", "n3"], "allow": ["10.20.0.0/16", "private"]})
    assert not any("webhooks" in file.path for file in rendered(found, "n1"))
    for machine in ("n2", "n3"):
        (unit,) = [file for file in rendered(found, machine) if file.path.endswith("dorm-webhooks.service")]
        started = service(unit.content.decode())
        text = json.dumps(started.command)
        for option, value in (
            ("--allow", "10.20.0.0/16"),
            ("--allow", "private"),
            ("--credentials", f"{layout.WEBHOOKS}/webhooks.json"),
            ("--key", f"{layout.WEBHOOKS}/webhooks.key"),
            ("--metrics", f"{found.machines[machine]}:9477"),
        ):
            assert json.dumps([option, value])[1:-1] in text
    # They sign with one file of keys, which a cluster without webhooks does not make.
    made = [
        next(file for file in keys_of(found, machine, keys) if file.path.endswith(".key") and "webhooks" in file.path)
        for machine in ("n2", "n3")
    ]
    assert made[0] == made[1]


def test_a_machine_gets_the_keys_of_its_parts_and_no_others(keys: KeyFolder) -> None:
    found = deployment(nodes={"gpu-*": {}})
    by_machine = {
        machine: {file.path: file for file in keys_of(found, machine, keys)} for machine in ("n1", "n2", "gpu-7")
    }
    assert by_machine["gpu-7"] == {}
    assert by_machine["n1"].keys() - by_machine["n2"].keys() == {
        *(f"{layout.API}/{name}" for name in ("api.json", "server.pem", "server.key")),
        *(f"{layout.WEBHOOKS}/{name}" for name in ("webhooks.json", "webhooks.key")),
        f"{layout.BACKUP}/backup.json",
    }
    certificate = f"{layout.KEYS}/server.pem"
    assert by_machine["n1"][certificate].content != by_machine["n2"][certificate].content
    everything = b"".join(file.content for files in by_machine.values() for file in files.values())
    assert (keys.path / "ca.key").read_bytes() not in everything
    assert keys.credentials("root").seed not in everything
    assert {file.mode for files in by_machine.values() for file in files.values()} == {0o600}
    # Each unit gives its own to the user who reads them: systemd-tmpfiles would not, in a folder of that user.
    given = []
    for file in rendered(found, "n1"):
        if file.path.endswith(".service"):
            for command in values(parsed(file.content.decode()), "Service", "ExecStartPre"):
                program, option, owner, *paths = command.split()
                assert (program, option, owner) == ("+/bin/chown", "-h", "dorm:dorm")
                given += paths
    assert sorted(given) == sorted(by_machine["n1"])


def test_certificates_are_renewed_when_an_address_changes_or_they_expire(keys: KeyFolder) -> None:
    before = keys.certificate_of("n1")[0].read_bytes()
    assert prepare(deployment(), keys, "root", NOW) == []
    assert keys.certificate_of("n1")[0].read_bytes() == before
    moved = {"n1": "10.9.9.9", "n2": "10.0.0.2", "n3": "10.0.0.3"}
    assert prepare(deployment(machines=moved), keys, "root", NOW) == ["n1"]
    late = NOW + 800 * 86400 * 10**9
    assert prepare(deployment(machines=moved), keys, "root", late) == ["n1", "n2", "n3"]


def test_an_unknown_machine_has_no_files() -> None:
    with pytest.raises(DeploymentError) as refused:
        parts(deployment(), "stranger")
    assert refused.value.code == "deploy.machine.unknown"


def test_every_template_is_used_and_filled_completely() -> None:
    found = deployment(nodes=EVERYTHING)
    assert not any(b"{{" in file.content for machine in ("n1", "gpu-7") for file in rendered(found, machine))
    with pytest.raises(KeyError):
        fill("{{missing}}", {})
    assert fill("a\n{{empty}}\nb {{empty}}", {"empty": ""}) == "a\nb \n"
    names = {os.path.basename(file.path) for file in rendered(found, "n1")}
    used = {path.name.removesuffix(".in") for path in TEMPLATES.glob("*.in")} - {"hardening"}
    assert used - names == {"sysusers.conf", "tmpfiles.conf"}  # These two are called dorm.conf there.


@settings(max_examples=tries(25, 200), deadline=None)
@given(
    st.lists(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12), min_size=1, max_size=5
    )
)
def test_systemd_reads_the_words_that_were_written(given: list[str]) -> None:
    assert words(command_line(given)) == given


@pytest.mark.parametrize("name", ["a b", "50%n", "jürgen", "q\"u'o\\te", "$HOME;#x"])
def test_folders_may_have_any_name(tmp_path: Path, name: str) -> None:
    """systemd reads each as it is: commands with C's escapes, lists of paths with quotes, single paths without."""
    folder = f"/mnt/{name}/x"
    given = deployment(
        checkpoints=f"{folder}/c", mount=folder, archives={"place": f"{folder}/a"},
        backup={"machines": ["n1"], "folder": f"{folder}/b"}, nodes={"n1": {"runtime": "process", "secrets": f"{folder}/s"}},
    )  # fmt: skip
    files = {file.path: file.content.decode() for file in rendered(given, "n1")}
    agent = files[f"{layout.UNITS}/dorm-agent.service"]
    assert agent_of(agent) == ("n1", layout.NODE, f"{folder}/c")

    def read(unit: str, section: str, key: str) -> str:
        (value,) = values(parsed(files[f"{layout.UNITS}/{unit}.service"]), section, key)
        return value.replace("%%", "%")

    assert read("dorm-agent", "Unit", "AssertPathIsMountPoint") == folder
    for unit, section, key, paths in (
        ("dorm-agent", "Unit", "RequiresMountsFor", [f"{folder}/c", layout.NODE]),
        ("dorm-master", "Service", "ReadWritePaths", [layout.MASTER, f"{folder}/a"]),
        ("dorm-backup", "Unit", "RequiresMountsFor", [f"{folder}/b", f"{folder}/a"]),
    ):
        assert shlex.split(read(unit, section, key)) == paths
    if shutil.which("systemd-tmpfiles") and os.geteuid() == 0:
        lines = [line for line in files[layout.TMPFILES].splitlines() if line.startswith("d ") and folder[:5] in line]
        (tmp_path / "made.conf").write_text("\n".join(lines).replace("dorm dorm", "root root") + "\n")
        command = ["systemd-tmpfiles", "--create", f"--root={tmp_path}", str(tmp_path / "made.conf")]
        done = subprocess.run(command, capture_output=True, check=False)
        assert (tmp_path / f"{folder}/a".lstrip("/")).is_dir(), done.stderr
        assert (tmp_path / f"{folder}/b".lstrip("/")).is_dir(), done.stderr
