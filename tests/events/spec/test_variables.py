"""Variables in commands and in `env`: what is expanded, what stays, and what the author is told."""

from __future__ import annotations

from typing import Any

import pytest

from events.spec import check_spec
from events.spec.checking import LARGEST_ARGUMENT
from events.spec.variables import TooLong, check_names, expanded, expanded_env, findings, scripts_in
from tests.core.records import document
from tests.errors import raises

VALUES = {"DORM_RANK": "2", "DORM_OUTPUTS": "/out $DORM_RANK", "LR": "0.1"}


@pytest.mark.parametrize(
    ("word", "made"),
    [
        ("$DORM_OUTPUTS", "/out $DORM_RANK"),  # Once: a value is not read again.
        ("--rank=${DORM_RANK}/$LR", "--rank=2/0.1"),
        ("${DORM_RANK}0", "20"),
        ("$DORM_RANK0", "$DORM_RANK0"),
        ("$HOME/${NAME}", "$HOME/${NAME}"),
        ("$$DORM_RANK $${LR} $$HOME $$", "$DORM_RANK ${LR} $$HOME $$"),
        ("$$$LR", "$$LR"),
        ("${LR:-1} ${LR} $(LR) {LR} $", "${LR:-1} 0.1 $(LR) {LR} $"),
        ("^a$|b$", "^a$|b$"),
        ("ä${LR}€", "ä0.1€"),
    ],
)
def test_a_word(word: str, made: str) -> None:
    assert expanded(["prog", word], VALUES) == ("prog", made)
    assert expanded_env({"A": word}, VALUES) == {"A": made}


@pytest.mark.parametrize(
    ("command", "scripts"),
    [
        (["bash", "-c", "S"], {2}),
        (["/bin/sh", "-ec", "S", "sh", "arg"], {2}),
        (["env", "A=1", "bash", "-euo", "pipefail", "-c", "S"], {6}),
        (["bash", "-ceuo", "pipefail", "S"], {3}),
        (["bash", "--rcfile", "f", "--login", "+x", "-lc", "S"], {6}),
        (["timeout", "9", "sh", "-c", "S", "sh", "bash", "-c", "T"], {4, 8}),
        (["sh", "-c", "--", "S"], {3}),
        (["bash", "run.sh", "-c", "x"], set()),
        (["bash", "-x", "run.sh"], set()),
        (["python", "-c", "S"], set()),
        (["sh", "-c"], set()),
    ],
)
def test_scripts_of_shells(command: list[str], scripts: set[int]) -> None:
    assert scripts_in(command) == scripts


def test_a_shells_script_is_left_to_the_shell_and_its_arguments_are_not() -> None:
    script = "echo '$DORM_RANK' \"$DORM_RANK\" $1"
    assert expanded(["bash", "-c", script, "sh", "$DORM_RANK"], VALUES) == ("bash", "-c", script, "sh", "2")


def test_a_sweeps_parameters_stay_as_they_are() -> None:
    assert expanded_env({"DORM_PARAM_X": "$DORM_RANK", "X": "$DORM_RANK"}, VALUES) == {
        "DORM_PARAM_X": "$DORM_RANK",
        "X": "2",
    }


@pytest.mark.parametrize(
    ("words", "size"), [(["$A" * 60_000], LARGEST_ARGUMENT), (["$A"] * 50, 50_000), (["$A"], LARGEST_ARGUMENT + 1)]
)
def test_what_becomes_too_long_is_refused_before_it_is_made(words: list[str], size: int) -> None:
    with raises(TooLong, "container.command.too_large"):
        expanded(words, {"A": "x" * size})
    with raises(TooLong, "container.command.too_large"):
        expanded_env({f"V{number}": word for number, word in enumerate(words)}, {"A": "x" * size})


def spec(**fields: Any) -> Any:
    return check_spec(document(**fields))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"command": ["a", "$DORM_OUTPUT"]}, "spec.command.unknown_variable"),
        ({"command": ["a", "--r=$DORM_RANK0"]}, "spec.command.unknown_variable"),
        ({"resume": ["a", "${DORM_BATCH}"]}, "spec.resume.unknown_variable"),
        ({"checkpoint": ["a", "$DORM_VOLUME_DATA"]}, "spec.checkpoint.unknown_variable"),
        ({"env": {"A": "$DORM_MEMBERS/x"}}, "spec.env.unknown_variable"),
        ({"command": ["a", "$DORM_ARRAY_INDEX"]}, "spec.command.unknown_variable"),
        ({"command": ["a", "$DORM_VOLUME_DATA", "$DORM_OUTPUTS"], "volumes": {"data": "/data"}}, ""),
        ({"command": ["a", "$DORM_ARRAY_INDEX", "$DORM_PARAM_X"], "group": {"name": "g", "parameters": {"x": 1}}}, ""),
        ({"command": ["a", "$DORM_MEMBERS"], "engine": "elastic"}, ""),
        ({"command": ["a", "$DORM_ENVIRONMENT"], "requirements": ["einops"]}, ""),
        ({"command": ["a", "$$DORM_NOTHING", "$DORMOUSE"]}, ""),
        ({"command": ["sh", "-c", "export DORM_X=1; echo $DORM_X"]}, ""),
        ({"command": ["perl", "-e", "my $DORM_X = 1; print $DORM_X"]}, ""),
    ],
)
def test_names_that_can_only_be_mistakes_are_refused(fields: dict[str, Any], code: str) -> None:
    made = spec(**fields)
    if not code:
        check_names(made)
        return
    with raises(Exception, code):
        check_names(made)


def test_a_refusal_names_what_was_meant() -> None:
    with raises(Exception, "spec.command.unknown_variable", "did you mean DORM_OUTPUTS?"):
        check_names(spec(command=["a", "--out=$DORM_OUTPUT"]))
    with raises(Exception, "spec.command.unknown_variable", "write ${DORM_RANK}0"):
        check_names(spec(command=["a", "$DORM_RANK0"]))


@pytest.mark.parametrize(
    "word",
    [
        "$HOME/data", "${USER}", "--dir=${DATA_DIR}", "$SLURM_PROCID", "${SLURM_JOB_ID:-0}", "$1", "$@", "--lr=$lr", "${lr}",
        "~/data", "~", "--out=~/runs", "$(hostname)", "run-$(date +%s)", "$(DATA_DIR)/x", "${OUT:-/tmp}", "$DATA/a/$B",
        "print('$HOME')", "~ann/data",
    ],
)  # fmt: skip
def test_what_a_shell_would_have_expanded_is_reported(word: str) -> None:
    assert [one.code for one in findings(spec(command=["prog", word]))] == ["command.not_expanded"]


@pytest.mark.parametrize(
    "word",
    [
        "{print $1}", "$1 ~ /x/ {print $NF}", "^a$", "s/a$/b/", "(a|b)$", "cost: $5", "$", "$$", "a$b", "$$HOME", "$$1", "a~",
        "my $x = 1; print $x", "print $ENV{PATH}", "import os; print('$y', \"`z`\")", "$DORM_OUTPUTS/x", "${LR}", "--lr=$LR",
        "HEAD~1", "*.txt", "{lr}", "x=~y", "[$]", "a$1b", "$KEY_FILE", "data/$DORM_RANK", "$.store.book",
    ],
)  # fmt: skip
def test_literal_dollars_are_not(word: str) -> None:
    made = spec(command=["prog", word], env={"LR": "1"}, secrets={"KEY_FILE": "key"})
    assert findings(made) == ()
    check_names(made)


def test_scripts_and_variables() -> None:
    made = spec(
        command=["bash", "-c", "cd $HOME && awk '{print $1}' ~/x"],
        env={"A": "$LR/x", "LR": "1", "B": "~/.cache", "C": "pa$word", "PATH": "/opt/bin:$PATH", "D": "$DORM_RANK"},
        resume=["a", "$RANK"],
    )
    assert [(one.code, one.text.partition(":")[0]) for one in findings(made)] == [
        ("resume.not_expanded", "resume[1]"),
        ("env.not_expanded", "env.A"),
        ("env.not_expanded", "env.B"),
        ("env.not_expanded", "env.PATH"),
    ]
    assert "$DORM_RANK" in findings(made)[0].text
