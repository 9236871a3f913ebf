"""What is said of an app before it is submitted, by what was observed of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dorm.core.query.assumed import PlannedApp
from dorm.doctor.apps import Cluster, Folder, Observed, judge_app
from dorm.local.scripts import Named, Python, Reading
from events import kinds as k
from events.spec import check_spec

SHIPS = Folder(path="/home/me/project", files=2, size=2048, names=frozenset({"train.py", "data", "data/x.csv", "."}))
READ = Reading(scripts=("train.py",), started=("train.py",), pythons={"python": "the command"})
PYTHON = Python(program="/usr/bin/python3", version="3.12.1")
HERE = Cluster(name="local", nodes=2, local=True, processes=("n1", "n2"))
PLANNED = PlannedApp("train", "train-1", 0, 1, {}, {"n1": 1}, "start", None, False)
CONTRACT = 'os.environ["DORM_CHECKPOINT_DIR"], os.environ["DORM_PROGRESS"], os.environ["DORM_RANK"]'


def observed(spec: dict[str, Any] | None = None, **more: Any) -> Observed:
    given: dict[str, Any] = {"name": "train", "command": ["python", "train.py"], "demand": {"cpu": 1}, "workdir": "."}
    usual: dict[str, Any] = {"folder": SHIPS, "reading": READ, "python": PYTHON, "cluster": HERE}
    return Observed(name="train", spec=check_spec({**given, **(spec or {})}), **{**usual, **more})


def reading(**more: Any) -> Reading:
    return msgspec.structs.replace(READ, **more)


def cluster(**more: Any) -> Cluster:
    return msgspec.structs.replace(HERE, **more)


def named(path: str, *, there: bool = True, used: bool = False, written: bool = False) -> Named:
    return Named(path, path, there, "train.py, line 3", used, written)


def said(seen: Observed) -> dict[str, str]:
    """Return the levels of what is not well, by code."""
    found = judge_app(seen)
    assert all(one.code for one in found if one.level != "ok"), found
    assert all("\n" not in one.text + one.todo for one in found)
    return {one.code: one.level for one in found if one.level != "ok"}


def test_an_app_with_nothing_wrong() -> None:
    seen = observed(reading=reading(text=CONTRACT), cluster=cluster(planned=PLANNED))
    assert said(seen) == {}
    texts = {one.check: one.text for one in judge_app(seen)}
    assert texts["spec"] == '1 container of 1 core, engine plain: ["python","train.py"]'
    assert texts["folder"] == "/home/me/project: 2 files, 2 KiB would be shipped"
    assert texts["place"] == "it would get 1 container now: 1 on n1"


@pytest.mark.parametrize(
    ("more", "code", "level"),
    [
        ({"faults": (("spec.n_min.too_large", "n_min: too large"),)}, "spec.n_min.too_large", "wrong"),
        ({"notes": (".env: KEY is left out",)}, "check.spec.note", "note"),
        ({"variables": (("spec.command.variable", "$LR is not expanded"),)}, "spec.command.variable", "wrong"),
        ({"not_passed": "HF_HOME is set in this shell"}, "check.variables.not_passed", "note"),
        ({"folder": Folder(path=".", refused=("workdir.too_large", "it is large"))}, "workdir.too_large", "wrong"),
        ({"folder": Folder(path=".", left_out=("a is a socket",))}, "check.folder.left_out", "note"),
        ({"folder": Folder(path=".", size=2048, room=2047)}, "check.folder.quota", "note"),
        ({"folder": None, "unshipped": "train.py"}, "check.folder.not_shipped", "wrong"),
        ({"reading": reading(absent={"trian.py": "run.sh, line 2"})}, "check.program.script_not_found", "wrong"),
        ({"reading": reading(faults={"run.sh": "CR LF"})}, "check.program.malformed", "wrong"),
        ({"reading": reading(unparsed={"train.py": "?"}), "python": None}, "check.program.malformed", "note"),
        ({"reading": reading(tools={"srun": "run.sh, line 2"})}, "check.program.foreign_tool", "wrong"),
        ({"reading": reading(tools={"module": "run.sh, line 2"})}, "check.program.foreign_tool", "note"),
        ({"reading": reading(tools={"scontrol": "run.sh, line 2"})}, "check.program.foreign_tool", "wrong"),
        ({"reading": reading(scripts=(), started=(), pythons={})}, "check.program.not_read", "unknown"),
        ({"reading": reading(lost={"run.sh": "run.sh, line 2"})}, "check.program.not_read", "unknown"),
        ({"reading": reading(unset={"SLURM_PROCID": "run.sh, line 2"})}, "check.variables.foreign", "note"),
        ({"not_found": ("python2",)}, "check.program.not_found", "wrong"),
        ({"python": None, "unasked": "the image brings its own"}, "check.python.not_asked", "unknown"),
        ({"reading": reading(paths=(named("../data"),))}, "check.paths.outside", "wrong"),
        ({"reading": reading(paths=(named("data/y.csv", used=True),))}, "check.paths.left_out", "wrong"),
        ({"reading": reading(paths=(named("data/y.csv"),))}, "check.paths.left_out", "note"),
        ({"reading": reading(local={"model.py": "train.py, line 2"})}, "check.paths.left_out", "wrong"),
        ({"reading": reading(paths=(named("runs", there=False, written=True),))}, "check.paths.not_kept", "note"),
        ({"cluster": cluster(local=False), "reading": reading(paths=(named("/data/x"),))},
         "check.paths.of_this_machine", "note"),
        ({"cluster": cluster(images=("n1",), processes=())}, "run.image.missing", "wrong"),
        ({"cluster": cluster(images=("n1",))}, "run.image.missing", "note"),
        ({"cluster": cluster(refusals=(("spec.name.taken", "it exists"),))}, "spec.name.taken", "wrong"),
        ({"cluster": cluster(nodes=0)}, "check.cluster.no_nodes", "note"),
        ({"cluster": cluster(paused="paused by ann")}, "check.cluster.paused", "note"),
        ({"cluster": cluster(planned=PLANNED, others=("b would go from 2 containers to 1",))}, "check.place.others", "note"),
        ({"cluster": None, "unreached": ("log.no_server", "no server answers")}, "log.no_server", "unknown"),
        ({"spec": {"image": "a:1"}}, "check.image.ignored", "note"),
        ({"spec": {"image": "a:1"}, "folder": None, "unshipped": "train.py"}, "check.folder.not_shipped", "note"),
        ({"spec": {"secrets": {"KEY_FILE": "key"}}}, "check.secrets.unseen", "unknown"),
        ({"spec": {"command": ["torchrun", "--master_port=29500", "train.py"]}}, "check.ports.fixed", "note"),
    ],
)  # fmt: skip
def test_each_finding_has_its_level_and_code(more: dict[str, Any], code: str, level: str) -> None:
    if "reading" in more:
        more["reading"] = msgspec.structs.replace(more["reading"], text=CONTRACT if "runs" not in str(more) else "")
    assert said(observed(**more)).get(code) == level
    assert said(observed()).get(code) is None


def test_a_missing_module_is_wrong_unless_requirements_may_bring_it() -> None:
    lacks = msgspec.structs.replace(PYTHON, missing=("torch", "yaml"))
    imports = reading(imports={"torch": "train.py, line 1", "yaml": "train.py, line 2"})
    assert said(observed(reading=imports, python=lacks))["check.python.module_not_found"] == "wrong"
    (wrong,) = (one for one in judge_app(observed(reading=imports, python=lacks)) if one.level == "wrong")
    assert "torch (train.py, line 1), yaml (train.py, line 2)" in wrong.text
    assert "install pyyaml torch" in wrong.todo
    some = observed({"requirements": ["torch>=2"]}, reading=imports, python=lacks)
    assert said(some)["check.python.not_required"] == "note"
    assert "torch" not in next(one.todo for one in judge_app(some) if one.code == "check.python.not_required")
    every = observed(
        {"requirements": ["Torch[opt] >= 2 ; python_version > '3'", "PyYAML"]}, reading=imports, python=lacks
    )
    assert not {code for code in said(every) if code.startswith("check.python")}


@pytest.mark.parametrize(
    ("spec", "read", "code"),
    [
        ({"n_max": 4}, reading(text="print()"), "check.ranks.unused"),
        ({"n_max": 4}, reading(text="dist.init_process_group()"), "check.ranks.engine"),
        ({"n_max": 4}, reading(text="", launchers={"torchrun": "the command"}), "check.ranks.own_launcher"),
        ({"n_max": 4}, reading(text="DORM_RANK"), None),
        ({"n_max": 4, "engine": "torchrun"}, reading(text="dist.init_process_group()"), None),
        ({}, reading(text="print()"), None),
    ],
)
def test_a_program_that_does_not_share_its_work(spec: dict[str, Any], read: Reading, code: str | None) -> None:
    found = [one for one in said(observed(spec, reading=read)) if one.startswith("check.ranks")]
    assert found == ([code] if code else [])


def test_the_options_of_sbatch_are_translated() -> None:
    lines = ("--job-name=fit", "--ntasks", "4", "-c", "2", "--gres=gpu:a100:1", "--mem=8G", "--partition=x")
    (one,) = (
        one for one in judge_app(observed(reading=reading(directives=lines))) if one.code == "check.program.directives"
    )
    assert one.todo == "the same here: --name fit --n-min 4 --n-max 4 --cpu 2 --gpu 1 --memory 8GiB"
    assert "check.program.directives" not in said(observed())


@pytest.mark.parametrize(
    ("lines", "here"),
    [
        ("--nodes=2 --ntasks-per-node=4", "--n-min 8 --n-max 8"),
        ("--ntasks=8 --nodes=2", "--n-min 8 --n-max 8"),
        ("-N 2", "--n-min 2 --n-max 2"),
        ("--signal=B:USR1@60", "--set stop_signal.signal=SIGUSR1 --set stop_signal.before=60s"),
        ("--signal=SIGINT", "--set stop_signal.signal=SIGINT"),
    ],
)
def test_options_of_sbatch_that_belong_together(lines: str, here: str) -> None:
    seen = observed(reading=reading(directives=tuple(lines.split())))
    (one,) = (one for one in judge_app(seen) if one.code == "check.program.directives")
    assert one.todo == f"the same here: {here}"


def test_a_resume_that_nothing_starts_is_told() -> None:
    resumes = {"resume": ["python", "train.py", "--resume"]}
    code = "check.checkpoints.resume_unused"
    assert said(observed(resumes, reading=reading(text="DORM_CHECKPOINT_DIR"))).get(code) == "note"
    assert code not in said(observed(resumes, reading=reading(text=CONTRACT)))
    assert code not in said(observed({"resume": ["python", "train.py"]}))  # A service, which loses nothing.


@pytest.mark.parametrize(
    ("option", "value", "here"),
    [
        ("--time", "30", "30m"),
        ("-t", "30:15", "1815s"),
        ("--time", "2:00:00", "2h"),
        ("--time", "1-12", "36h"),
        ("--time", "1-12:30", "2190m"),
        ("--time", "1-12:00:00", "36h"),
        ("--time", "UNLIMITED", "UNLIMITED"),
        ("--mem", "512", "512MiB"),
        ("--mem", "4096M", "4096MiB"),
        ("--gpus", "2", "2"),
        ("--gpus-per-task", "a100:2", "2"),
    ],
)
def test_values_of_slurm_are_written_as_here(option: str, value: str, here: str) -> None:
    (one,) = (one for one in judge_app(observed(reading=reading(directives=(option, value)))) if "SBATCH" in one.text)
    assert one.todo.rpartition(" ")[2] == here


def test_results_are_kept_or_not() -> None:
    paths = (named("runs", there=False, written=True), named("out.csv", there=False, written=True))
    found = judge_app(observed(reading=reading(paths=paths)))
    (one,) = (one for one in found if one.code == "check.paths.not_kept")
    assert "runs, out.csv" in one.text
    kept = observed(reading=reading(paths=paths, text="DORM_OUTPUTS"))
    assert "check.paths.not_kept" not in said(kept)
    assert "check.paths.not_kept" not in said(observed(reading=reading(paths=paths), folder=None))


def test_checkpoints_that_are_not_reported() -> None:
    grows = {"n_max": 2}
    text = next(one.text for one in judge_app(observed(grows)) if one.check == "checkpoints")
    assert "a resize restarts it from the beginning" in text
    text = next(one.text for one in judge_app(observed()) if one.check == "checkpoints")
    assert "a move to another node restarts it from the beginning" in text
    assert "check.checkpoints.none" not in said(observed(grows, reading=reading(text=CONTRACT)))
    assert "check.checkpoints.none" not in said(observed({"elastic": "live", "n_max": 2}))


def test_a_waiting_app_says_why_and_until_when() -> None:
    reason = k.Waiting("resources", "no node has room")
    planned = PlannedApp("train", "train-1", 0, 0, {}, {}, "", None, False, reason=reason)
    seen = observed(cluster=cluster(planned=planned, start="It will start in about 2 min, if no node fails."))
    (waits,) = (one for one in judge_app(seen) if one.code == "check.place.waits")
    assert (
        waits.text == "it would wait now: no node has room (resources); it will start in about 2 min, if no node fails."
    )


def test_a_sweep_shows_the_words_of_its_first_and_its_last_app() -> None:
    apps = (("s-0000", ("python", "t.py", "--lr", "0.1")), ("s-0011", ("python", "t.py", "--lr", "1e-3")))
    texts = [one.text for one in judge_app(observed(apps=apps, count=12)) if one.check == "spec"]
    assert texts[0].startswith("12 apps, each 1 container of 1 core")
    assert texts[1:] == [
        's-0000: ["python","t.py","--lr","0.1"]',
        's-0011: ["python","t.py","--lr","1e-3"]',
    ]


def test_what_is_left_out_is_shipped_by_the_outermost_folder() -> None:
    paths = (
        named("data/raw/y.csv", used=True),
        named("big/raw/z.csv", used=True),
        named(".venv/bin/activate", used=True),
    )
    found = [one for one in judge_app(observed(reading=reading(paths=paths))) if one.code == "check.paths.left_out"]
    assert [one.todo.partition(" in ")[0] for one in found] == [
        "ship it by a line `!/data/raw/`",
        "ship it by a line `!/big/`",
        "leave this line out: the app gets this shell's Python, with the environment that is active here",
    ]
    seen = observed(reading=reading(paths=paths[2:]), cluster=cluster(local=False))
    (one,) = (one for one in judge_app(seen) if one.code == "check.paths.left_out")
    assert one.todo == "leave this line out, and list the environment's packages in `requirements:`"


def test_a_computed_path_is_wrong_only_if_it_can_be_no_other() -> None:
    def level(*paths: str) -> str | None:
        read = tuple(Named(path, path, True, "train.py, line 3", True, False, "data/*.bin") for path in paths)
        return said(observed(reading=reading(paths=read))).get("check.paths.left_out")

    shipped = next(iter(sorted(SHIPS.names)))
    assert level("data/y.bin", "data/z.bin") == "wrong"
    assert level("data/y.bin", shipped) == "note"


def test_what_the_program_makes_itself_is_not_missed() -> None:
    paths = (named("../data/clean.json", written=True), named("../data/clean.json", used=True))
    assert "check.paths.outside" not in said(observed(reading=reading(paths=paths)))


@pytest.mark.parametrize(
    ("paths", "wrong"),
    [
        ([("logs/out.txt", True)], True),
        ([("../logs/out.txt", True)], True),
        ([("out.txt", True)], False),
        ([("../out.txt", True)], False),
        ([("logs", False), ("logs/out.txt", True)], False),
        ([("logs/a", False), ("logs/out.txt", True)], False),
        ([("logs/out.txt", False)], False),
    ],
)
def test_output_needs_a_folder(paths: list[tuple[str, bool]], wrong: bool) -> None:
    read = tuple(named(path, there=False, used=used, written=True) for path, used in paths)
    found = [one for one in judge_app(observed(reading=reading(paths=read))) if one.code == "check.paths.no_folder"]
    assert bool(found) == wrong
    if wrong:
        assert found[0].todo.endswith("/logs`" if ".." in paths[0][0] else "-p logs`")


def test_a_folder_above_is_shipped_with_the_command_in_this_one() -> None:
    folder = msgspec.structs.replace(SHIPS, path="/home/me/lab/my code/x/..")
    seen = observed(folder=folder, reading=reading(paths=(named("../../data/x.csv", used=True),)))
    (one,) = (one for one in judge_app(seen) if one.code == "check.paths.outside")
    assert "`--workdir ../.. -- env -C 'lab/my code' python train.py`" in one.todo


def test_paths_of_this_machine() -> None:
    def absolute(seen: Observed) -> bool:
        return "check.paths.of_this_machine" in said(seen)

    here = reading(paths=(named("/data/x"),))
    assert not absolute(observed(reading=here))
    assert not absolute(observed(reading=here, cluster=None, unreached=("log.no_server", "none")))
    assert absolute(observed(reading=here, cluster=cluster(local=False)))
    assert absolute(observed(reading=here, cluster=cluster(images=("n1",), processes=())))
    mounted = {"volumes": {"d": "/data"}}
    assert not absolute(observed(mounted, reading=here, cluster=cluster(local=False)))
    assert not absolute(observed(reading=reading(paths=(named("/dev/null"),)), cluster=cluster(local=False)))
    gone = reading(paths=(named("/data/gone", there=False, used=True),))
    assert absolute(observed(reading=gone))
