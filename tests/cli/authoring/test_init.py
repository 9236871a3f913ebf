"""`dorm spec init` writes a valid spec for any answers."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from dorm.cli.spec import KINDS, Answers, written
from events.spec import check_spec
from tests.e2e.commands import DORM

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dorm


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "command", [("python", "train.py"), ("sh", "-c", "echo 'a: [b]' # {c}"), ("run", "", "1e5", "yes", "ä\t\x1b")]
)
def test_every_answer_is_read_back(kind: str, command: tuple[str, ...]) -> None:
    answers = Answers(
        kind=kind,  # type: ignore[arg-type]
        name="on",
        command=command,
        n_max=4,
        cpu="500m",
        memory="4GiB",
        gpu=1,
        image="registry.lab:5000/a@sha256:0",
        volumes=(("datasets", "/data"),),
    )
    spec = check_spec(yaml.safe_load(written(answers)))
    assert (spec.name, tuple(spec.command), spec.n_max, spec.image) == ("on", command, 4, answers.image)
    assert (spec.demand, spec.volumes) == ({"cpu": "500m", "memory": "4GiB", "gpu": 1}, {"datasets": "/data"})
    assert (spec.engine, spec.elastic) == {
        "plain": ("plain", ""), "pytorch": ("torchrun", ""), "elastic": ("elastic", "live")
    }[kind]  # fmt: skip


def test_names_in_comments_are_correct_too() -> None:
    for kind in KINDS:
        text = written(Answers(kind=kind, name="app", command=("python", "train.py")))
        for line in text.splitlines():
            field = line.removeprefix("# ")
            if line.startswith("# ") and field.split(":")[0].isidentifier() and not field.startswith("env_file"):
                check_spec({**yaml.safe_load(text), **yaml.safe_load(field)})


def test_a_spec_is_written_without_questions_and_passes_a_dry_run(here: Dorm, tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    words = (
        "spec",
        "init",
        file,
        "--yes",
        "--kind",
        "pytorch",
        "--command",
        "python train.py --lr 0.1",
        "--n-max",
        "2",
    )
    assert here(*words)[0] == 0
    code, out, _ = here("submit", file, "--dry-run")
    assert code == 0
    assert yaml.safe_load(out) == {
        "name": "train", "command": ["python", "train.py", "--lr", "0.1"], "demand": {"cpu": 1}, "n_max": 2,
        "engine": "torchrun", "grace": "60s",
    }  # fmt: skip
    code, _, err = here(*words)
    assert (code, "file.exists" in err) == (2, True)
    assert here(*words, "--force")[0] == 0
    code, _, err = here("spec", "init", "-", "--yes", "--n-min", "3", "--n-max", "2")
    assert (code, "n_min" in err) == (2, True)


def test_questions_on_a_terminal_have_answers_that_enter_takes(tmp_path: Path) -> None:
    main, other = pty.openpty()
    with subprocess.Popen(
        [*DORM, "spec", "init", "out.yaml", "--gpu", "1"],
        cwd=tmp_path, stdin=other, stdout=other, stderr=other, env={**os.environ, "NO_COLOR": "1"},
    ) as process:  # fmt: skip
        os.close(other)
        said = _answered(main, {"What does it run": "pytorch", "Command": "python fit.py", "n_min": "x\r2"})
        assert process.wait(60) == 0, said
    os.close(main)
    spec = check_spec(yaml.safe_load((tmp_path / "out.yaml").read_text()))
    assert (spec.name, spec.command, spec.n_min, spec.engine) == ("train", ["python", "fit.py"], 2, "torchrun")
    assert "whole number" in said


def _answered(terminal: int, answers: dict[str, str]) -> str:
    """Answer each question once by what it holds, all others by Enter; return all that was written."""
    said, at, left = "", 0, dict(answers)
    while select.select([terminal], [], [], 60)[0]:
        try:
            part = os.read(terminal, 4096).decode()
        except OSError:  # The program has ended.
            break
        said += part
        if said.endswith("]: "):
            question = said[at:].splitlines()[-1]
            at = len(said)
            known = next((word for word in left if word in question), "")
            os.write(terminal, (left.pop(known, "") + "\r").encode())
    return said
