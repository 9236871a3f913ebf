"""Which files are shipped: what git says, on real repositories, and what counts without it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from dorm.workdir import ignoring, scanning
from dorm.workdir.scanning import Scanned, scan
from dorm.workdir.shipping import revision_of
from events.workdir import Limits
from tests.workdir.test_packing import LIMITS, filled

if TYPE_CHECKING:
    from pathlib import Path


def run_git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose rules are wider than meant, and that has some of these files nevertheless."""
    (tmp_path / "repo").mkdir()
    run_git(tmp_path / "repo", "init", "-q")
    root = filled(
        tmp_path / "repo",
        DOTgitignore="log*\ndata/\n*.json\n!package.json\n", trainDOTpy="1", project__utils__loggingDOTpy="1",
        data__trainDOTcsv="1", data__moreDOTcsv="22", configs__modelDOTjson="1", configs__localDOTjson="1",
        packageDOTjson="1", notesDOTmd="1", node_modules__mineDOTjs="1", node_modules__otherDOTjs="1",
    )  # fmt: skip
    tracked = ("project/utils/logging.py", "data/train.csv", "configs/model.json", "node_modules/mine.js", "notes.md")
    run_git(root, "add", "-f", *tracked)
    return root


def shipped(scanned: Scanned) -> list[str]:
    return [entry.path for entry in scanned.entries if ".git" not in entry.path]


def rules(scanned: Scanned) -> dict[str, str]:
    return {left.path: left.why for left in scanned.left_out if left.kind == "rule"}


def test_what_git_tracks_is_shipped_whatever_its_rules_say(root: Path) -> None:
    scanned = scan(root, LIMITS)
    assert shipped(scanned) == [
        "configs/model.json", "data/train.csv", "node_modules/mine.js", "notes.md", "package.json", "project/utils/logging.py",
        "train.py",
    ]  # fmt: skip
    assert rules(scanned) == {"configs/local.json": ".gitignore:3: *.json", "data/": ".gitignore:2: data/"}
    (data,) = (left for left in scanned.left_out if left.path == "data/")
    assert (data.files, data.size, data.complete) == (1, 2, True)  # The tracked file is none of those left out.
    assert scanned.notes == []
    # A part of a repository is shipped by the same rules.
    assert shipped(scan(root / "configs", LIMITS)) == ["model.json"]
    assert rules(scan(root / "configs", LIMITS)) == {"local.json": ".gitignore:3: *.json"}


def test_dormignore_is_above_git(root: Path) -> None:
    filled(root, DOTdormignore="notes.md\n!local.json\n/data/train.csv\n")
    scanned = scan(root, LIMITS)
    assert shipped(scanned) == [
        ".dormignore", "configs/local.json", "configs/model.json", "node_modules/mine.js", "package.json",
        "project/utils/logging.py", "train.py",
    ]  # fmt: skip
    assert rules(scanned)["notes.md"] == ".dormignore:1: notes.md"
    filled(root, DOTdormignore="data\n")
    assert "data/train.csv" not in shipped(scan(root, LIMITS))


def test_rules_are_gits_own(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files elsewhere, its order, and patterns with escapes, a BOM and Windows's line ends."""
    (root / ".git" / "info").mkdir(exist_ok=True)
    filled(
        root,
        DOTgit__info__exclude="private.txt\n",
        privateDOTtxt="1",
        sub__DOTgitignore="!keep.json\nruns/*\n!runs/a/\n",
    )
    filled(root, sub__keepDOTjson="1", sub__runs__a__x="1", sub__runs__b__x="1", sub__bDOTtmp="1", globalDOTtxt="1")
    (root / "sub" / "more").mkdir()
    (root / "sub" / "more" / ".gitignore").write_bytes("\ufeffone.txt\r\n\\!two.txt\r\nthree.txt\\ \n".encode())
    for name in ("one.txt", "!two.txt", "three.txt ", "three.txt", "ü\n.txt", ":(top)x", "[a].json"):
        (root / "sub" / "more" / name).write_text("1")
    (tmp_path / "ignore").write_text("/global.txt\n")
    (tmp_path / "config").write_text(f"[core]\n\texcludesFile = {tmp_path / 'ignore'}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    scanned = scan(root, LIMITS)
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True, stdout=-1
    )
    assert {*shipped(scanned)} == {
        path for path in listed.stdout.decode().split("\0") if path and ".git" not in path and path != "node_modules/other.js"
    }  # fmt: skip
    assert rules(scanned)["private.txt"].endswith("info/exclude:1: private.txt")
    assert rules(scanned)["global.txt"] == f"{tmp_path / 'ignore'}:1: /global.txt"
    assert rules(scanned)["sub/runs/b/"] == "sub/.gitignore:2: runs/*"


def test_repositories_within_have_their_own_index(root: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    run_git(tmp_path / "lib", "init", "-q")
    filled(tmp_path / "lib", DOTgitignore="*.bin\n", codeDOTpy="1", oneDOTbin="1", tableDOTjson="1")
    run_git(tmp_path / "lib", "add", "-f", ".")
    run_git(tmp_path / "lib", "commit", "-qm", "all")
    run_git(root, "submodule", "add", "-f", str(tmp_path / "lib"), "data/lib")
    filled(root / "data" / "lib", twoDOTbin="1", moreDOTjson="1")
    found = scan(root, LIMITS)
    assert [path for path in shipped(found) if path.startswith("data/")] == [
        "data/lib/code.py", "data/lib/one.bin", "data/lib/table.json", "data/train.csv",
    ]  # fmt: skip
    assert rules(found)["data/lib/two.bin"] == "data/lib/.gitignore:1: *.bin"
    assert rules(found)["data/lib/more.json"] == ".gitignore:3: *.json"  # What is around it counts too.


def test_a_worktree_is_shipped_as_its_repository_is(root: Path, tmp_path: Path) -> None:
    run_git(root, "commit", "-qm", "all")
    run_git(root, "worktree", "add", "-q", str(tmp_path / "tree"))
    filled(tmp_path / "tree", DOTgitignore="data/\n", data__moreDOTcsv="1")
    assert "data/train.csv" in shipped(scan(tmp_path / "tree", LIMITS))
    assert rules(scan(tmp_path / "tree", LIMITS)) == {"data/": ".gitignore:1: data/"}


def test_shipping_a_folder_starts_no_program_that_its_repository_names(root: Path, tmp_path: Path) -> None:
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    spy.chmod(0o755)
    for setting in ("core.fsmonitor", "core.sshCommand", "core.pager", "alias.ls-files", "core.hooksPath"):
        run_git(root, "config", setting, str(spy))
    run_git(root, "config", "core.untrackedCache", "true")
    assert "data/train.csv" in shipped(scan(root, LIMITS))
    assert not (tmp_path / "started").exists()


def test_no_filter_or_transport_of_a_repository_is_started(root: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    run_git(tmp_path / "lib", "init", "-q")
    filled(tmp_path / "lib", codeDOTpy="1", DOTgitattributes="* filter=it\n")
    run_git(tmp_path / "lib", "add", ".")
    run_git(tmp_path / "lib", "commit", "-qm", "all")
    run_git(root, "submodule", "add", "-f", str(tmp_path / "lib"), "lib")
    filled(root, DOTgitattributes="* filter=a=b\n")
    run_git(root, "commit", "-qm", "all")
    for folder, driver in ((root, "a=b"), (root / "lib", "it")):
        run_git(folder, "config", f"filter.{driver}.clean", f"touch {tmp_path}/started; cat")
        run_git(folder, "config", f"filter.{driver}.required", "true")
    filled(root, notesDOTmd="2")  # as large as before, so git compares the contents
    filled(root / "lib", codeDOTpy="2")
    assert asyncio.run(revision_of(root)).changed
    assert not (tmp_path / "started").exists()
    run_git(root, "config", "remote.origin.url", f"ext::touch {tmp_path}/started")
    run_git(root, "config", "remote.origin.promisor", "true")
    run_git(root, "config", "protocol.ext.allow", "always")
    assert ignoring.ask_git(root, "cat-file", "-t", "1" * 40)[0] != 0
    assert not (tmp_path / "started").exists()


def test_without_git_its_files_are_read_and_that_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git ignores never leaves the machine because git did not answer."""

    def silent(*_: object, **__: object) -> object:
        raise FileNotFoundError("git")

    with_git = scan(root, LIMITS)
    monkeypatch.setattr(subprocess, "run", silent)
    scanned = scan(root, LIMITS)
    # Folders in which everything is left out are there, but empty.
    assert shipped(scanned) == ["configs", "notes.md", "package.json", "project/utils", "train.py"]
    assert {"configs/local.json", "data/", "configs/model.json"} <= rules(scanned).keys()
    assert len(scanned.notes) == 1
    monkeypatch.undo()
    # Nor because it fails halfway.
    asked = ignoring.ask_git

    def failing(folder: Path, *words: str, **how: object) -> tuple[int, bytes]:
        return (128, b"") if words[0] == "check-ignore" else asked(folder, *words, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(ignoring, "ask_git", failing)
    assert shipped(scan(root, LIMITS)) == shipped(with_git)


def test_a_pipe_with_the_name_of_patterns_has_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".dormignore")
    filled(tmp_path, trainDOTpy="1")
    writer = threading.Timer(10, lambda: os.open(tmp_path / ".dormignore", os.O_RDWR))  # so that no failure hangs
    writer.daemon = True
    writer.start()
    assert shipped(scan(tmp_path, LIMITS)) == ["train.py"]
    assert writer.is_alive()
    writer.cancel()


def test_environments_are_left_out_and_named(tmp_path: Path) -> None:
    root = filled(
        tmp_path, aDOTpy="1", venv__pyvenvDOTcfg="1", conda__envs__x__condaSmeta__history="1", conda__yDOTpy="1"
    )
    (root / "conda" / "envs" / "x" / "condaSmeta").rename(root / "conda" / "envs" / "x" / "conda-meta")
    scanned = scan(root, LIMITS)
    assert [entry.path for entry in scanned.entries] == ["a.py", "conda/envs", "conda/y.py"]
    assert [(one.path, one.kind, one.files) for one in scanned.left_out] == [
        ("conda/envs/x/", "environment", 1), ("venv/", "environment", 1),
    ]  # fmt: skip


def test_counting_what_is_left_out_ends_in_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_MEASURED_S", -1.0)
    (data,) = (left for left in scan(root, LIMITS).left_out if left.path == "data/")
    assert not data.complete


def test_many_entries_are_asked_about_in_parts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_AT_ONCE", 3)
    before = shipped(scan(root, Limits()))
    for number in range(40):
        filled(root, **{f"d{number}__e__xDOTjson": "1", f"d{number}__e__xDOTpy": "1"})
    after = shipped(scan(root, Limits()))
    assert after == sorted([*before, *(f"d{number}/e/x.py" for number in range(40))])
