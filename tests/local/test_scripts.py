"""Scripts in commands as people type them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from dorm.local.commands import CommandRefused
from dorm.local.scripts import ask_python, check_script, read_program, script_of, shell_faults, unshipped
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.local.scripts import Reading


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 0.1", "train.py"),
        ("/usr/bin/python3.11 -u src/train.py", "src/train.py"),
        ("python -m pkg.train data.py", ""),
        ("python -c print(1) train.py", ""),
        ("python /srv/train.py", ""),
        ("./go.sh now.py", "./go.sh"),
        ("bash -eu go.sh", "go.sh"),
        ("python", ""),
        ("sleep 5", ""),
        ("", ""),
    ],
)
def test_the_script_of_a_command(command: str, script: str) -> None:
    assert script_of(command.split()) == script


def test_a_missing_script_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    check_script(["python", "src/train.py"], tmp_path)
    with raises(CommandRefused, "run.script.not_found") as refused:
        check_script(["python", "src/trian.py"], tmp_path)
    assert str(refused.value).endswith("did you mean src/train.py?")
    with raises(CommandRefused, "run.script.not_found") as refused:
        check_script(["python", "other/model.py"], tmp_path)
    assert "did you mean" not in str(refused.value)
    assert unshipped(["python", "src/train.py"], tmp_path) == "src/train.py"
    assert unshipped(["python", "src/trian.py"], tmp_path) == ""


# --- what a program starts, imports and names ----------------------------------------------------------------------------

TRAIN = """\
import argparse
import numpy
import nowhere_to_be_found
from lib.model import Net
from lib import other

try:
    import optional_one
except ImportError:
    pass

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="../data/x.csv", help="../data")
parser.add_argument("--more", default="../data/x.csv")
parser.add_argument("--out", default="results")

def late():
    import later_one
    numpy.savez("weights/w.npz", x={"name": 1})
    with open("metrics.csv", "w") as file, open("seen.csv") as other:
        pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").touch()
    (folder / "seen.csv").touch()
    (folder / "train.py").write_text(TRAIN)
    (folder / "lib" / "__init__.py").touch()
    (folder / "lib" / "model.py").write_text("import missing_in_lib\n")
    (folder / "lib" / "other.py").write_text("from . import third\nfrom lib import train\n")
    (folder / "lib" / "third.py").touch()
    return folder


def read(folder: Path, *words: str) -> Reading:
    return read_program(words, folder)


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/bash\nset -e\npython -u train.py --data here \\\n  --epochs 3 | tee log.txt\n",
        "A=1 exec python3 train.py --data=here\n",
        'cd "$(dirname "$0")"\nif true; then python train.py --data x; fi\n',
        "cd lib\ncd ..\npython train.py --data x\n",
        "bash -c 'time python train.py --data x'\n",
        "bash inner.sh\n",
    ],
)
def test_a_wrapper_is_read_through(project: Path, script: str) -> None:
    (project / "run.sh").write_text(script)
    (project / "inner.sh").write_text("env LR=1 python train.py --data x\n")
    found = read(project, "bash", "run.sh")
    assert found.started[0] == "run.sh"
    assert found.started[-1] == "train.py"
    assert set(found.local) == {"lib/__init__.py", "lib/model.py", "lib/other.py", "lib/third.py"}
    assert {name: found.imports[name] for name in ("nowhere_to_be_found", "missing_in_lib")} == {
        "nowhere_to_be_found": "train.py, line 3",
        "missing_in_lib": "lib/model.py, line 1",
    }
    assert not {"optional_one", "later_one", "lib"} & set(found.imports)
    paths = {one.path: (one.target, one.there, one.written) for one in found.paths if one.where.startswith("train.py")}
    # The command gives --data, so its default does not count; a help text is no path.
    assert [one.where for one in found.paths if one.path == "../data/x.csv"] == ["train.py, line 14"]
    assert paths == {
        "../data/x.csv": ("../data/x.csv", True, False),
        "results": ("results", False, True),
        "weights/w.npz": ("weights/w.npz", False, True),
        "metrics.csv": ("metrics.csv", False, True),
        "seen.csv": ("seen.csv", True, False),
    }


def test_modules_launchers_and_tools_of_others(project: Path) -> None:
    assert read(project, "python", "-m", "lib.model").started == ("lib/model.py",)
    found = read(project, "python", "-m", "torch.distributed.run", "train.py")
    assert (found.launchers, found.imports) == ({"torch.distributed.run": "the command"}, {"torch": "the command"})
    found = read(project, "torchrun", "--nproc_per_node", "2", "train.py")
    assert (found.launchers, found.started) == ({"torchrun": "the command"}, ("train.py",))
    (project / "job.sh").write_text(
        "#SBATCH --ntasks=4 -c 2 # four\nmodule load cuda\nconda activate x\nsrun -n 2 python train.py\nsource ./set.sh\n"
    )
    (project / "set.sh").touch()
    found = read(project, "sh", "job.sh")
    assert list(found.tools) == ["module", "conda", "srun"]
    assert found.directives == ("--ntasks=4", "-c", "2")
    assert "train.py" in found.started
    assert [(one.path, one.used) for one in found.paths if one.where == "job.sh, line 5"] == [("./set.sh", True)]
    assert read(project, "python", "-c", "import nothing_here").imports == {"nothing_here": "the command (-c), line 1"}
    assert read(project, "bash", "gone.sh").absent == {"gone.sh": "the command"}
    assert [(one.path, one.used) for one in read(project, "cat", "--file=../data/x.csv").paths] == [
        ("../data/x.csv", True)
    ]


def test_what_is_read_for_certain(project: Path) -> None:
    (project / "data").mkdir()
    for name in ("data/a.csv", "data/b.csv", "data/c.csv", "data/d.csv"):
        (project / name).touch()
    (project / "fit.py").write_text(
        "import argparse\n"
        'p = argparse.ArgumentParser()\np.add_argument("--data", default="data/a.csv")\n'
        'open("data/b.csv")\nOTHER = "data/c.csv"\nopen("data/d.csv", mode="a")\n'
    )
    used = {one.path: (one.used, one.written) for one in read(project, "python", "fit.py").paths if "data/" in one.path}
    assert used == {
        "data/a.csv": (True, False),
        "data/b.csv": (True, False),
        "data/c.csv": (False, False),
        "data/d.csv": (False, True),
    }
    (project / "run.sh").write_text("ls data/b.csv\npython fit.py --data data/c.csv | tee log.txt > all.txt\n")
    used = {one.path: (one.used, one.written) for one in read(project, "bash", "run.sh").paths if "run.sh" in one.where}
    assert used["data/b.csv"] == (False, False)
    assert used["data/c.csv"] == (True, False)
    assert used["log.txt"] == used["all.txt"] == (True, True)
    (project / "run.sh").write_text("mkdir -p ../data new\nif true; then ls > x.txt; fi\n")
    used = {one.path: (one.used, one.written) for one in read(project, "bash", "run.sh").paths if "run.sh" in one.where}
    assert used == {"../data": (False, True), "new": (False, True), "x.txt": (False, True)}


@pytest.mark.parametrize(
    "start",
    [
        'cd "$(dirname "${BASH_SOURCE[0]}")"\npython train.py',
        "cd `dirname $0`; python train.py",
        'DIR=$(realpath "$(dirname "$0")")\nROOT="$(readlink -f "$DIR/..")"\ncd $ROOT/lib || exit 1\npython train.py',
        "cd ${0%/*} && python train.py",
        'HERE=$( cd -- "$( dirname -- "$0" )" &> /dev/null && pwd )\npython "$HERE/train.py"',
        'HERE="$(cd "$(dirname "$0")/.." && pwd)"\ncd "$HERE"/lib\npython train.py',
        "(cd .. && ls)\n(cd lib; python train.py)",
        "DIR=lib\npushd $DIR\npython train.py\npopd",
    ],
)
def test_a_script_that_goes_to_its_own_folder_is_followed(project: Path, start: str) -> None:
    (project / "lib" / "train.py").touch()
    (project / "lib" / "run.sh").write_text(f"{start}\n")
    found = read(project, "bash", "lib/run.sh")
    assert (found.started, found.absent) == (("lib/run.sh", "lib/train.py"), {})
    assert not [one for one in found.paths if "\x01" in one.path]


def test_what_may_not_be_run_is_not_absent(project: Path) -> None:
    (project / "run.sh").write_text(
        "cd $SOMEWHERE\npython gone.py\ncd /nowhere/known\n"
        "if [ -f a ]; then python a.py; fi\n[ -f b ] && python b.py\npython train.py || python c.py\n"
        "cat > x <<'END'\npython d.py\nEND\n(cd lib; true); python e.py\n"
    )
    found = read(project, "bash", "run.sh")
    assert (found.absent, found.lost) == ({}, {"run.sh": "run.sh, line 2"})
    (project / "run.sh").write_text("(cd lib; true); python e.py\nif true; then ls; fi; python f.py\n")
    assert read(project, "bash", "run.sh").absent == {"e.py": "run.sh, line 1", "f.py": "run.sh, line 2"}


def test_variables_that_another_system_sets(project: Path) -> None:
    (project / "run.sh").write_text(
        "echo $SLURM_PROCID ${SLURM_NTASKS:-1}\nexport SKYPILOT_NODE_RANK=$DORM_RANK\n"
        "# $SLURM_JOB_ID\nsrun -n $SLURM_NTASKS python train.py --rank $SKYPILOT_NODE_RANK\n"
    )
    found = read(project, "bash", "run.sh")
    assert found.unset == {"SLURM_PROCID": "run.sh, line 1", "SLURM_NTASKS": "run.sh, line 4"}
    assert read(project, "torchrun", "--nproc-per-node=2", "-m", "lib.model").started == ("lib/model.py",)


def test_a_makefile_is_read(project: Path) -> None:
    (project / "Makefile").write_text(
        "PY ?= python3\nDATA := ../data\nall: out/model.json\n"
        "out/model.json: $(DATA)/x.csv train.py\n\t@$(PY) train.py --data $< --out $(@D)\n\tcd lib && $(PY) other.py $$HOME\n"
    )
    (project / "out").mkdir()
    (project / "out" / "model.json").touch()
    for words in (["make", "-C", "project", "all"], ["make", "-C", "project", "-f", "Makefile"]):
        found = read(project.parent, *words)
        assert found.started == ("project/Makefile", "project/train.py", "project/lib/other.py")
        assert found.absent == {}
        needed = {one.target: (one.where, one.used) for one in found.paths if "Makefile" in one.where}
        assert needed["data/x.csv"] == ("project/Makefile, line 4", False)
        assert [one.target for one in found.paths if one.written and "Makefile" in one.where] == [
            "project/out/model.json"
        ]
    assert read(project, "make", "-f", "gone.mk").scripts == ()


def test_modules_outside_of_the_folder_are_told(project: Path) -> None:
    (project / "scripts").mkdir()
    (project / "scripts" / "run.sh").write_text("cd ..\npython -m lib.model\n")
    (one,) = (one for one in read(project / "scripts", "bash", "run.sh").paths if one.where != "the command")
    assert (one.target, one.there, one.used) == ("../lib/model.py", True, True)


COMPUTED = """\
import os, numpy as np, torch
from pathlib import Path
out_dir = "out"
dataset = "openwebtext"
data_dir = os.path.join("data", dataset)
ROOT = Path("data")

def batch(split, name):
    np.memmap(os.path.join(data_dir, f"{split}.bin"), mode="r")
    (ROOT / "meta" / name).read_text()
    open(name)
    torch.load(os.path.join(out_dir, "ckpt.pt"))
    torch.load(f"data/{name}.pt")
    torch.save({}, f"data/{name}.pt")
"""


def test_paths_that_a_program_computes(project: Path) -> None:
    for name in (
        "data/mine/train.bin",
        "data/mine/val.bin",
        "data/mine/x.csv",
        "data/meta/m",
        "data/a.pt",
        "out/ckpt.pt",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    (project / "fit.py").write_text(COMPUTED)
    found = [one for one in read(project, "python", "fit.py").paths if one.pattern]
    assert [(one.target, one.pattern, one.where) for one in found] == [
        ("data/mine/train.bin", "data/*/*.bin", "fit.py, line 9"),
        ("data/mine/val.bin", "data/*/*.bin", "fit.py, line 9"),
        ("data/meta/m", "data/meta/*", "fit.py, line 10"),
    ]


def test_a_script_beside_a_command_that_runs_above_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "lib")
    with raises(CommandRefused, "run.script.not_found") as refused:
        check_script(["bash", "other.py", "--lr", "a b"], project)
    assert str(refused.value).endswith("start it in its folder: `env -C lib bash other.py --lr 'a b'`")


def test_why_a_script_cannot_be_run(project: Path) -> None:
    (project / "run.sh").write_text("if true\n")
    assert shell_faults(read(project, "bash", "run.sh"), project)["run.sh"].startswith("line ")
    assert "chmod +x" in read(project, "./run.sh").faults["run.sh"]
    (project / "run.sh").write_bytes(b"#!/bin/bash\r\necho hi\r\n")
    assert "CR LF" in read(project, "bash", "run.sh").faults["run.sh"]
    (project / "bad.py").write_text("import os\nx = (\n")
    found = read(project, "python", "bad.py")
    assert found.unparsed["bad.py"].startswith("line 2: ")
    python = ask_python(sys.executable, found, project)
    assert python is not None
    assert python.faults["bad.py"].startswith("line 2: ")


def test_python_is_asked_without_running_anything_of_the_program(project: Path) -> None:
    ran = project / "ran"
    for name in ("json", "ast", "nowhere_to_be_found_either", "sitecustomize"):
        (project / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')\n")
    (project / "train.py").write_text(f"import numpy, not_there_at_all\nopen({str(ran)!r}, 'w')\n")
    found = ask_python(sys.executable, read(project, "python", "train.py"), project)
    assert found is not None
    assert found.missing == ("not_there_at_all",)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert not ran.exists()
    assert ask_python("/bin/false", read(project, "python", "train.py"), project) is None
    assert ask_python(str(project / "none"), read(project, "python", "train.py"), project) is None


@pytest.mark.timeout(20)
def test_hostile_scripts_are_read_in_bounds(project: Path) -> None:
    many = "".join(f"V{number}=a\n" for number in range(5000)) + "echo $V1\n" * 5000
    doubled = "W0=aaaaaaaa\n" + "".join(f"W{number}=$W{number - 1}$W{number - 1}\n" for number in range(1, 60))
    nested = "$( dirname " * 2000 + "(" * 5000 + "\nif" * 3000 + "\n" + "$(cd " * 2000
    (project / "run.sh").write_text(f"{many}{doubled}{nested}\n")
    made = (
        "".join(f"V{number} = $(V{number + 1})$(V{number + 1})\n" for number in range(50)) + "a: $(V0)\n\t$(V0)\n" * 500
    )
    (project / "Makefile").write_text(f"V50 = x\n{made}")
    assert read(project, "bash", "run.sh").started == ("run.sh",)
    assert read(project, "make").started == ("Makefile",)


def test_hostile_folders_are_read_in_bounds(project: Path) -> None:
    os.mkfifo(project / "pipe.py")
    assert read(project, "python", "pipe.py").absent == {"pipe.py": "the command"}
    (project / "loop.sh").write_text("bash loop.sh\nbash ./loop.sh\nbash lib/../loop.sh\n")
    assert read(project, "bash", "loop.sh").started == ("loop.sh",)
    (project / "binary.py").write_bytes(bytes(range(256)) * 10)
    assert "binary.py" in read(project, "python", "binary.py").unparsed
    (project / "deep.py").write_text("(" * 5000)
    assert "deep.py" in read(project, "python", "deep.py").unparsed
    (project.parent / "outside.py").write_text("import secret_module\n")
    found = read(project, "python", "../outside.py")
    assert (found.scripts, found.imports) == ((), {})
    (project / "linked.py").symlink_to(project.parent / "outside.py")
    found = read(project, "python", "linked.py")
    assert (found.scripts, found.imports) == ((), {})
    (project / "sum.py").write_text('open("out"' + " + b" * 1400 + ")\n")
    assert "sum.py" in read(project, "python", "sum.py").scripts
    (project / "quotes.sh").write_text("echo 'over\nlines'\npython train.py\n")
    assert "train.py" in read(project, "bash", "quotes.sh").started
    for number in range(400):
        (project / f"m{number}.py").write_text(f"import m{number + 1}\n")
    assert len(read(project, "python", "m0.py").scripts) <= 300
