"""What is left out, in words, and the failures that this explains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.workdir import look_at
from dorm.workdir.leaving import explained, listed, notices_of, summary_of
from tests.workdir.test_ignoring import run_git
from tests.workdir.test_packing import filled

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = filled(
        tmp_path / "p", DOTgitignore="/data/\n*.json\n/lib/\n", DOTdormignore="notes.md\n", trainDOTpy="1", notesDOTmd="1",
        configs__modelDOTjson="123", lib__codeDOTpy="1", data__raw__xDOTcsv="1",
        venv__pyvenvDOTcfg="1", venv__lib__python3V11__siteVpackages__numpy____init__DOTpy="1", pkg__loggingDOTpy="1",
    )  # fmt: skip
    (root / "venv/lib/python3V11/siteVpackages").rename(root / "venv/lib/python3V11/site-packages")
    (root / "venv/lib/python3V11").rename(root / "venv/lib/python3.11")
    (root / "pkg" / ".gitignore").write_text("log*\n")
    with (root / "data" / "large.bin").open("wb") as file:
        file.truncate(3 * 2**30)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "set.csv").write_text("1")
    (root / "set").symlink_to(tmp_path / "elsewhere")
    (root / "short").symlink_to("data")
    return root


def test_a_summary_says_how_many_entries_which_files_rules_leave_out(root: Path) -> None:
    found = look_at(root)
    assert summary_of(found.left_out) == (
        ".gitignore: 4 entries, 3 GiB; .dormignore: 1 entry, 1 B; environments: 1 entry, 2 B"
    )
    assert "configs/model.json (3 B in 1 file): .gitignore:2: *.json" in listed(found.left_out)
    link, data = notices_of(found)
    assert link.startswith("set is a link to ")
    assert data.startswith("data/ (3 GiB) is left out")
    assert all("volumes:" in line for line in (link, data))
    assert notices_of(found, volumes=True) == [link]


@pytest.mark.parametrize(
    ("output", "rule"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'configs/model.json'", ".gitignore:2: *.json"),
        (
            "slot 0 ended with exit code 1: reads / cat: data/raw/x.csv: No such file or directory",
            ".gitignore:1: /data/",
        ),
        ("cat: ./data/raw/../raw/x.csv: No such file or directory", ".gitignore:1: /data/"),
        ("run.sh: line 3: /srv/node/work/data/raw/x.csv: No such file or directory", ".gitignore:1: /data/"),
        ("RuntimeError: file ../configs/model.json does not exist", ".gitignore:2: *.json"),
        (
            "python3: can't open file '/dorm/work/lib/code.py': [Errno 2] No such file or directory",
            ".gitignore:3: /lib/",
        ),
        ("sh: 1: cannot open short/raw/x.csv: No such file", ".gitignore:1: /data/"),
        ("ModuleNotFoundError: No module named 'pkg.logging'", "pkg/.gitignore:1: log*"),
        ("ImportError: cannot import name 'logging' from 'pkg' (unknown location)", "pkg/.gitignore:1: log*"),
        ("/usr/bin/python3: No module named lib", ".gitignore:3: /lib/"),
        ("ModuleNotFoundError: No module named 'lib.code'\nsrun: error", ".gitignore:3: /lib/"),
        ("FileNotFoundError: 'notes.md'", ".dormignore:1: notes.md"),
        ("ModuleNotFoundError: No module named 'numpy'", "requirements"),
        ("[Errno 2] No such file or directory: 'set/set.csv'", "volumes:"),
    ],
)
def test_a_failure_names_what_it_misses_and_the_rule(root: Path, output: str, rule: str) -> None:
    assert rule in explained(f"some lines\n{output}\n", root)


@pytest.mark.parametrize(
    "output",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'elsewhere.json'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'train.py'",  # It was shipped.
        "ModuleNotFoundError: No module named 'pandas'",
        "ModuleNotFoundError: No module named 'code'",
        "ValueError: data/raw/x.csv has no header",
        "No such file or directory: '" + "../" * 500 + "\x00'",
        "",
    ],
)
def test_other_failures_are_not_explained(root: Path, output: str) -> None:
    assert explained(output, root) == ""


def test_the_advice_ships_the_file(root: Path) -> None:
    (root / ".gitignore").write_text("da?a*/\n")
    filled(root / "da[a] 1", x="1")
    run_git(root, "init", "-q")
    told = explained("cat: 'da[a] 1/x': No such file or directory", root)
    line = told.partition("a line ")[2].partition(" in .dormignore")[0]
    assert "da[a] 1/x" not in [entry.path for entry in look_at(root).entries]
    (root / ".dormignore").write_text(f"{line}\n")
    assert "da[a] 1/x" in [entry.path for entry in look_at(root).entries]


def test_the_advice_ships_the_files_that_would_be_missed_next(root: Path) -> None:
    (root / ".gitignore").write_text("*.bin\n")
    filled(root / "data [1]", **{"train.bin": "1", "val.bin": "2", "notes.md": "3"})
    filled(root / "other", **{"model.bin": "4"})
    run_git(root, "init", "-q")
    told = explained("FileNotFoundError: [Errno 2] No such file or directory: 'data [1]/train.bin'", root)
    line = told.partition("a line ")[2].partition(" in .dormignore")[0]
    assert told.endswith("ships it and 1 more")
    (root / ".dormignore").write_text(f"{line}\n")
    shipped = [entry.path for entry in look_at(root).entries]
    assert {"data [1]/train.bin", "data [1]/val.bin"} <= set(shipped)
    assert "other/model.bin" not in shipped
