"""Checkpoints of another app: the files of a step, and copies that exist completely or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from agents.outputs import folders
from agents.outputs.checkpoints import _copy, bring, chosen
from agents.outputs.files import FilesError
from agents.outputs.folders import CheckpointFolder
from agents.runtime.interface import Refused
from events.copying import FileEntry
from events.spec.gates import Origin, origin_of
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

FILES = ["config", "step-10.pt", "step-20.pt", "step-030.pt", "logs-10-a", "model20", "epoch-1-step-20"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a@20+", FILES),
        ("a@20", ["config", "step-10.pt", "step-20.pt", "logs-10-a", "model20", "epoch-1-step-20"]),
        ("a@10", ["config", "step-10.pt", "logs-10-a", "model20", "epoch-1-step-20"]),
        ("a@30", FILES),
    ],
)
def test_an_origin_selects_the_files_of_its_step(text: str, kept: list[str]) -> None:
    origin = origin_of(text)
    assert origin is not None
    aside = [FileEntry(".doubtful", "folder"), FileEntry(".doubtful/generation-2/step-20.pt", "file")]
    found = chosen([FileEntry("", "folder"), *aside, *(FileEntry(name, "file") for name in FILES)], origin)
    assert [entry.path for entry in found] == kept
    with raises(Refused, "spec.from.no_step"):
        chosen([FileEntry("torch.pt", "file")], Origin("a", 20, False))


def test_parsing_of_origins() -> None:
    assert origin_of("digits-mlp") == Origin("digits-mlp", None, True)
    assert origin_of("digits-mlp@120") == Origin("digits-mlp", 120, False)
    assert origin_of("digits-mlp@120+") == Origin("digits-mlp", 120, True)
    for text in ("digits-mlp", "digits-mlp@120", "digits-mlp@120+"):
        assert origin_of(text) == origin_of(origin_of(text).text)  # type: ignore[union-attr]
    for text in ("", "../x", "a/b", "a@", "a@b", "a@1@2", "A", "-a", "a@1\n", "a" * 65):
        assert origin_of(text) is None


def test_one_copy_is_made_and_no_link_is_followed(tmp_path: Path) -> None:
    shared = CheckpointFolder(tmp_path / "shared")
    shared.open()
    source = folders.folders_of(shared, "old-abcdef", "alice", resume=False, cluster="").checkpoints
    (source / "deep").mkdir()
    (source / "deep" / "step-10").write_bytes(b"x" * 1000)
    (source / "tool").write_text("#!")
    (source / "tool").chmod(0o755)
    os.symlink("/etc/passwd", source / "out")
    os.mkfifo(source / "pipe")
    folders.prepare(shared, "new", "alice", cluster=shared.id)
    with ThreadPoolExecutor(4) as pool:
        digests = list(pool.map(lambda _: bring(shared.path, "new", "old-abcdef@10+"), range(4)))
    new = shared.path / "new"
    assert sorted(path.relative_to(new).as_posix() for path in new.rglob("*")) == ["deep", "deep/step-10", "tool"]
    assert (new / "deep/step-10").read_bytes() == b"x" * 1000
    assert os.access(new / "tool", os.X_OK)
    assert sorted(os.listdir(shared.path / folders.APPS / "new")) == ["origin", "outputs", "owner"]
    (new / "tool").write_text("mine")
    digest = bring(shared.path, "new", "old-abcdef@10+")
    assert (new / "tool").read_text() == "mine"
    assert {*digests} - {""} == {digest}, "one that was not first may look before it is noted"
    holds = {"deep/step-10": "file " + sha256(b"x" * 1000).hexdigest(), "tool": "program " + sha256(b"#!").hexdigest()}
    lines = ['"deep" folder', *(f'"{path}" {what}' for path, what in holds.items())]
    assert digest == sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    assert bring(shared.path, "new", "") == ""
    with raises(Refused, "spec.from.gone"):
        bring(shared.path, "other", "gone-abcdef@10")


def test_a_copy_takes_no_more_room_than_its_source_and_ends(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    copy.mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(2**40)
        file.seek(2**39 + 5)
        file.write(b"data")
    _copy(source, copy, FileEntry("sparse", "file", 2**40 - 3))  # It was shorter when it was listed.
    status = (copy / "sparse").stat()
    assert (status.st_size, status.st_blocks * 512 < 2**22) == (2**40 - 3, True)
    with (copy / "sparse").open("rb") as file:
        file.seek(2**39 + 4)
        assert file.read(6) == b"\0data\0"
    with raises(FilesError, "files.changed"):
        (copy / "sparse").unlink()
        _copy(source, copy, FileEntry("sparse", "file", 2**41))
