"""From a folder to blobs: exclusions, refusals, and that equal folders have equal hashes."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from dorm.workdir import shipping
from dorm.workdir.errors import Changing, Unshippable
from dorm.workdir.scanning import FoundLink, scan
from dorm.workdir.shipping import Packed, Packing, content_of
from events.workdir import BLOB, UNPACKED_MANIFEST, Limits, decode, open_blob
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from dorm.workdir.shipping import Source

LIMITS = Limits()


def filled(root: Path, **files: str) -> Path:
    for path, text in files.items():
        target = root / path.replace("__", "/").replace("DOT", ".")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def paths(root: Path, limits: Limits = LIMITS) -> list[str]:
    return [entry.path for entry in scan(root, limits).entries]


def packed(root: Path) -> Packed:
    return Packing(root, scan(root, LIMITS)).pack()


def test_the_rules_of_git_and_of_dorm_exclude_files(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    filled(tmp_path, DOTgitignore="/repo-only.txt\n*.log\n", repo_only="1")
    root = filled(
        tmp_path / "project",
        DOTgitignore="out/\n*.ckpt\n!keep.ckpt\n",
        DOTdormignore="notes.md\n!best.ckpt\n",
        trainDOTpy="1", aDOTckpt="1", keepDOTckpt="1", bestDOTckpt="1", notesDOTmd="1", runDOTlog="1", out__x="1",
        src__DOTgitignore="/local.py\n!debug.log\n", src__localDOTpy="1", src__modelDOTpy="1", src__debugDOTlog="1",
        src__sub__localDOTpy="1", venv__pyvenvDOTcfg="1", venv__bin__python="1", node_modules__x="1",
    )  # fmt: skip
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.pyc").write_text("1")
    found = [path for path in paths(root) if "ignore" not in path]
    assert found == [
        "best.ckpt", "keep.ckpt", "src/debug.log", "src/model.py", "src/sub/local.py", "train.py",
    ]  # fmt: skip


def test_an_ignored_folder_is_shipped_if_it_is_named(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    root = filled(tmp_path, DOTgitignore="/generated/\n", generated__aDOTpy="1")
    assert paths(root) == [".gitignore"]
    assert paths(root / "generated") == ["a.py"]


def test_links_stay_within_and_special_files_are_named_and_left_out(tmp_path: Path) -> None:
    root = filled(tmp_path / "p", a__x="1")
    (root / "latest").symlink_to("a/x")
    (root / "loop").symlink_to("loop")
    (root / "a" / "round").symlink_to("..")
    (root / "empty").mkdir()
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(root / "sock"))
        scanned = scan(root, LIMITS)
    assert [entry.path for entry in scanned.entries] == ["a/round", "a/x", "empty", "latest", "loop"]
    assert {entry.target for entry in scanned.entries if isinstance(entry, FoundLink)} == {"..", "a/x", "loop"}
    assert [(one.path, one.kind, one.why) for one in scanned.left_out] == [
        ("pipe", "special", "a named pipe"), ("sock", "special", "a socket"),
    ]  # fmt: skip


def test_a_link_is_relative_in_the_copy_or_left_out_if_it_leads_out(tmp_path: Path) -> None:
    root = filled(tmp_path / "p", a__x="1", a__b__y="1")
    (tmp_path / "data").mkdir()
    links: dict[str, Path | str] = {
        "absolute": root / "a" / "x", "a/b/absolute": root / "a" / "x", "gone": root / "nowhere", "itself": root,
        "a/b/round": "../b/../x", "chain": root / "absolute",
        "out": "/etc/passwd", "a/up": "../../elsewhere", "data": tmp_path / "data", "through": "data/../data/z",
    }  # fmt: skip
    for path, target in links.items():
        (root / path).symlink_to(target)
    (tmp_path / "alias").symlink_to(root)
    scanned = scan(tmp_path / "alias", LIMITS)
    assert {entry.path: entry.target for entry in scanned.entries if isinstance(entry, FoundLink)} == {
        "absolute": "a/x", "a/b/absolute": "../x", "gone": "nowhere", "itself": ".", "a/b/round": "../x", "chain": "absolute",
    }  # fmt: skip
    assert [(one.path, one.kind) for one in scanned.left_out] == [
        ("a/up", "link"), ("data", "link"), ("out", "link"), ("through", "link"),
    ]  # fmt: skip
    decode(open_blob(packed(root).hash, packed(root).manifest, UNPACKED_MANIFEST) or b"")  # Nodes accept them all.


def test_a_folder_that_is_too_large_is_refused_before_it_is_read_with_its_largest_parts(tmp_path: Path) -> None:
    root = filled(tmp_path / "p", trainDOTpy="1", small__x="1")
    (root / "data" / "raw").mkdir(parents=True)
    for number in range(10):
        with (root / "data" / "raw" / f"{number}.bin").open("wb") as file:
            file.truncate(2**30)  # Sparse: ten gigabytes that no test writes.
    with raises(Unshippable, "workdir.too_large") as told:
        scan(root, Limits(file=2**31))
    assert "data/raw (10 GiB)" in str(told.value)
    assert ".dormignore" in str(told.value)
    with raises(Unshippable, "workdir.file.too_large") as told:
        scan(root, LIMITS)
    assert "data/raw/0.bin has 1 GiB" in str(told.value)
    with raises(Unshippable, "workdir.too_many_files") as told:
        scan(root, Limits(file=2**31, total=2**40, count=5))
    assert "data/raw (10 files)" in str(told.value)
    with raises(Unshippable, "workdir.not_a_folder"):
        scan(root / "nowhere", LIMITS)


def test_undecodable_names_and_unreadable_files_are_named(tmp_path: Path) -> None:
    root = filled(tmp_path / "p", aDOTpy="1")
    (root / os.fsdecode(b"bad\xff")).write_text("1")
    with raises(Unshippable, "workdir.path.malformed"):
        scan(root, LIMITS)
    (root / os.fsdecode(b"bad\xff")).unlink()
    scanned = scan(root, LIMITS)
    (root / "a.py").unlink()
    (root / "a.py").symlink_to("/etc/passwd")  # After it was looked at.
    with raises(Unshippable, "workdir.file.unreadable"):
        Packing(root, scanned).pack()


def test_equal_folders_have_one_hash_and_a_changed_file_changes_one_blob(tmp_path: Path) -> None:
    for name in ("one", "other"):
        filled(tmp_path / name, **{f"pkg{n % 7}__m{n}DOTpy": f"print({n})\n" * n for n in range(200)})
    one, other = packed(tmp_path / "one"), packed(tmp_path / "other")
    assert (one.hash, one.files) == (other.hash, 200)
    assert len(one.blobs) < 20
    os.utime(tmp_path / "other" / "pkg1" / "m1.py", (1, 1))
    assert packed(tmp_path / "other").hash == one.hash
    (tmp_path / "other" / "pkg3" / "m3.py").write_text("print('changed')")
    (tmp_path / "other" / "pkg3" / "new.py").write_text("print('new')")
    changed = packed(tmp_path / "other")
    assert changed.hash != one.hash
    assert 1 <= len(changed.blobs.keys() - one.blobs.keys()) <= 2
    (tmp_path / "one" / "pkg1" / "m1.py").chmod(0o755)
    assert packed(tmp_path / "one").hash != one.hash


def test_large_files_are_cut_and_all_blobs_match_their_names(tmp_path: Path) -> None:
    root = filled(tmp_path / "p", empty="", aDOTpy="a", bDOTpy="b")
    large = os.urandom(BLOB * 2 + 77)
    (root / "weights.bin").write_bytes(large)
    (root / "same.bin").write_bytes(large)
    found = packed(root)
    assert (found.files, found.size) == (5, 2 * len(large) + 2)
    sizes = [len(content_of(root, name, sources)) for name, sources in found.blobs.items()]
    assert sum(sizes) == len(large) + 2  # The same bytes are there once.
    assert max(sizes) == BLOB


def test_a_file_that_changes_while_it_is_packed_is_read_again_or_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = filled(tmp_path / "p", stableDOTpy="1", busyDOTlog="0")
    opened, writes = shipping._opened, [2]

    def opening(folder: Path, path: str) -> object:
        file = opened(folder, path)
        if path == "busy.log" and writes[0]:
            writes[0] -= 1
            real = file.read

            def read(most: int = -1) -> bytes:
                content = real(most)
                with (root / "busy.log").open("a") as more:
                    more.write("more")
                return content

            class Busy:
                fileno, __enter__, __exit__ = file.fileno, lambda self: self, lambda self, *_: file.close()

            Busy.read = staticmethod(read)  # type: ignore[attr-defined]
            return Busy()
        return file

    monkeypatch.setattr(shipping, "_opened", opening)
    assert packed(root).size == 1 + len("0moremore")
    writes[0] = 10**6
    with raises(Changing, "workdir.file.changing") as told:
        packed(root)
    assert str(told.value).startswith("busy.log: ")


def test_files_changed_between_packing_and_sending_are_not_sent(tmp_path: Path) -> None:
    root = filled(tmp_path / "p", aDOTpy="aaaa")
    ((name, sources),) = packed(root).blobs.items()
    (root / "a.py").write_text("bbbb")
    with raises(Changing, "workdir.file.changing"):
        content_of(root, name, sources)
    gone: list[Source] = sources
    (root / "a.py").unlink()
    with raises(Changing, "workdir.file.changing"):
        content_of(root, name, gone)
