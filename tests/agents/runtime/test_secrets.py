"""Secrets are files of the node: a container finds its own user's, and a node without one says what to do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agents.runtime import secrets
from agents.runtime.interface import Refused
from events import kinds as k
from events.codec import encode
from events.spec import check_spec
from tests.agents.one_node import Node
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from events.spec import AppSpec

SECRET = b"0a1b2c3d4e5f"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.clean()


def put(folder: Path, user: str, name: str, content: bytes = SECRET) -> Path:
    path = folder / user / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def spec(user: str = "ann", **named: str) -> AppSpec:
    return check_spec(
        {
            "name": "app",
            "command": ["work"],
            "demand": {"cpu": 1},
            "user": user,
            "secrets": named or {"KEY_FILE": "key"},
        }
    )


async def test_a_container_reads_its_users_secret_and_the_copy_does_not_outlive_it(node: Node) -> None:
    put(node.root / "secrets", "ann", "key")
    put(node.root / "secrets", "bob", "key", b"another")
    script = 'cp "$KEY_FILE" "$DORM_CHECKPOINT_DIR/seen"; stat -c %a "$KEY_FILE" > "$DORM_CHECKPOINT_DIR/mode"'
    async with node.agent():
        await node.release(script, user="ann", secrets={"KEY_FILE": "key"})
        ended = await node.until(k.ContainerExited)
    assert isinstance(ended, k.ContainerExited)
    assert ended.exit_code == 0
    seen = node.root / "checkpoints/app-1"
    assert (seen / "seen").read_bytes() == SECRET
    assert (seen / "mode").read_text().strip() == "600"
    copies = list((node.root / "containers").rglob("secret-key"))
    assert [copy.read_bytes() for copy in copies] == [b""]
    assert not any(SECRET in record.body for record in node.log.records)
    assert not [path for path in (node.root / "agent").rglob("*") if path.is_file() and SECRET in path.read_bytes()]


async def test_a_node_without_the_secret_reports_where_to_put_it(node: Node) -> None:
    async with node.agent():
        await node.release("true", user="ann", secrets={"KEY_FILE": "key"})
        ended = await node.until(k.ContainerExited)
    assert isinstance(ended, k.ContainerExited)
    assert ended.reason == "spec"
    assert f"put it at {node.root / 'secrets/ann/key'} on this node" in ended.message


def test_an_agent_without_a_folder_has_no_secrets() -> None:
    with raises(Refused, "secrets.no_folder", "--secrets"):
        secrets.files(None, spec())


@pytest.mark.parametrize("what", ["nothing", "link", "folder", "pipe", "large"])
def test_only_files_of_the_user_are_read(tmp_path: Path, what: str) -> None:
    other, path = put(tmp_path, "bob", "key"), tmp_path / "ann" / "key"
    path.parent.mkdir()
    match what:
        case "link":
            path.symlink_to(other)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "large":
            path.write_bytes(bytes(secrets.LARGEST + 1))
    with raises(Refused, "secrets.not_readable", str(path)):
        secrets.files(tmp_path, spec())


@pytest.mark.parametrize("name", ["../bob/key", "/etc/passwd", "..", "a/b", "", "key\n"])
def test_no_name_leads_out_of_the_users_folder(name: str) -> None:
    with pytest.raises(ValueError, match="secrets"):
        spec(KEY_FILE=name)


def test_each_is_read_once_however_many_variables_name_it(tmp_path: Path) -> None:
    put(tmp_path, "ann", "key")
    two = spec(A="key", B="key")
    assert secrets.files(tmp_path, two) == {"secret-key": SECRET}
    assert secrets.variables(two, "/run") == {"A": "/run/secret-key", "B": "/run/secret-key"}
    assert SECRET not in encode(k.AppAccepted(app="a", spec=two, submission="s"))
