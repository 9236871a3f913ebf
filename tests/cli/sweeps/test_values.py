"""The values of sweeps and variables, from what is typed to what the apps are started with."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dorm.cli.errors import WrongUsage
from dorm.cli.sweeps import parameters, split
from dorm.cli.terminal import in_shell
from dorm.local.spec_files import read_spec
from events.spec.groups import as_text
from events.spec.sweeps import expanded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dorm

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("008,009,010,011", ["008", "009", "010", "011"]),
        ("1:10,4:1", ["1:10", "4:1"]),
        ("True,false,on,no", ["True", "false", "on", "no"]),
        ("1e-5,1.0e-5,1e5,1e400", ["1e-5", "1.0e-5", "1e5", "1e400"]),
        ("0.1,0.10,.5,-.5,+1", ["0.1", "0.10", ".5", "-.5", "+1"]),
        ("1_000,0x10,123456789012345678901", ["1_000", "0x10", "123456789012345678901"]),
        ("inf,nan,.inf,null,None,~", ["inf", "nan", ".inf", "null", "None", "~"]),
        ("2024-01-01,2024-02-01", ["2024-01-01", "2024-02-01"]),
        ("[64,64],[128]", ["[64,64]", "[128]"]),
        ("(10, 100), (20, 200)", ["(10, 100)", "(20, 200)"]),
        ('{"lr": 0.1, "a": "}"},{}', ['{"lr": 0.1, "a": "}"}', "{}"]),
        ('"a,b",\'c\', " d ",""', ["a,b", "c", " d ", ""]),
        ('"say ""x""",\'it\'\'s\'', ['say "x"', "it's"]),
        ("it's,fine", ["it's", "fine"]),
        ("1..3,7", ["1", "2", "3", "7"]),
        ("-1..1", ["-1", "0", "1"]),
        ('"1..3"', ["1..3"]),
        ("../data/a.csv,..,main..dev,a/1..2", ["../data/a.csv", "..", "main..dev", "a/1..2"]),
        (" a , b c ", ["a", "b c"]),
        ("a=b,c=d", ["a=b", "c=d"]),
    ],
)
def test_each_value_arrives_as_it_is_typed(typed: str, values: list[str]) -> None:
    spec = {"name": "s", "command": ["env", "X={p}"], "demand": {"cpu": 1}, "sweep": parameters([f"p={typed}"])}
    found = expanded(spec).specs
    assert [one.command[1] for one in found] == [f"X={value}" for value in values]
    assert [one.env["DORM_PARAM_P"] for one in found] == values


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("", "usage.bad_parameter"),
        ("a,,b", "usage.param.malformed"),
        ("a,", "usage.param.malformed"),
        ("[64,64", "usage.param.malformed"),
        ("64],[128", "usage.param.malformed"),
        ("(1,2]", "usage.param.malformed"),
        ('"a,b', "usage.param.malformed"),
        ('"a"b', "usage.param.malformed"),
        ("it's,that's", "usage.param.malformed"),
        ("0.1..0.3", "usage.param.range"),
        ("v1..v3", "usage.param.range"),
        ("001..010", "usage.param.range"),
        ("1...3", "usage.param.range"),
        ("3..1,7", "usage.param.range"),
        ("1..999999999,a", "usage.param.range"),
    ],
)
def test_what_could_mean_several_things_is_refused(typed: str, code: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        parameters([f"p={typed}"])
    assert caught.value.code == code


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from("'\""))
def test_any_text_in_quotes_is_one_value(texts: list[str], quote: str) -> None:
    typed = ",".join(quote + text.replace(quote, quote * 2) + quote for text in texts)
    assert split("p", typed) == [(text, True) for text in texts]
    assert parameters([f"p={typed}"]) == {"p": texts}


@given(TEXTS)
def test_a_value_is_the_typed_text_or_refused(text: str) -> None:
    try:
        found = parameters([f"p={text}"])["p"]
    except WrongUsage:
        return
    if isinstance(found, list) and len(found) == 1 and text.strip()[0] not in "'\"":
        assert as_text(found[0]) == text.strip()


def bash(script: str) -> str:
    return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "word", ["", "a b", "it's", 'say "x"', "$HOME", "`id`", "a\\b", "a\nb'\\", "\x1b[1m", "\u0085\u202e", "é", "*", "~"]
)
def test_a_command_is_shown_as_a_shell_takes_it(word: str) -> None:
    shown = in_shell(["printf", "%s", word])
    assert shown.isprintable()
    assert bash(f"export LC_ALL=C.UTF-8; {shown}") == word


def test_a_dry_run_shows_the_exact_command_of_the_first_and_the_last_app(here: Dorm, tmp_path: Path) -> None:
    code, out, err = here(
        "sweep", "run", "--dry-run", "--no-workdir", "-p", "p=[64, 64],010", "--", "env", "X={p}", "a\nb"
    )
    assert (code, err) == (0, "")
    runs = [line.partition(" runs: ")[2] for line in out.splitlines() if " runs: " in line]
    words = [
        json.loads(bash(f"python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' {line}")) for line in runs
    ]
    assert [word[-2:] for word in words] == [["X=[64, 64]", "a\nb"], ["X=010", "a\nb"]]

    (tmp_path / "app.yaml").write_text(
        "name: app\ncommand: [run, 010, 'two words', no]\ndemand: {cpu: 1}\nenv: {N: 2, F: true, R: 1e-4}\n"
    )
    code, out, err = here("submit", "--dry-run", tmp_path / "app.yaml")
    assert (code, out.splitlines()[0]) == (0, "# app runs: run 010 'two words' no"), err
    code, out, err = here("submit", "--dry-run", tmp_path / "app.yaml", "-o", "json")
    assert json.loads(out)["env"] == {"N": "2", "F": "true", "R": "1e-4"}, err
    code, out, err = here("run", "--dry-run", "--no-workdir", "--env", "A=010", "--set", "labels.b=no", "--set", "env.C=1:10",
                          "--", "env", "1_000", "a b")  # fmt: skip
    assert out.splitlines()[0].endswith("env 1_000 'a b'"), err
    (tmp_path / "again.yaml").write_text(out)
    again = read_spec(tmp_path / "again.yaml").value
    assert (again["env"], again["labels"], again["command"][-2:]) == (
        {"A": "010", "C": "1:10"},
        {"b": "no"},
        ["1_000", "a b"],
    )


def test_all_mistakes_of_a_file_are_reported_with_their_lines(here: Dorm, tmp_path: Path) -> None:
    path = tmp_path / "app.yaml"
    path.write_text(
        "nmae: a\ncommand: [run]\ndemand:\n  cpu: many\n  memory: 1XB\nn_min: 4\nn_max: 2\nretries: {limit: -1, backof: 1s}\n"
    )
    expected = {
        ("spec.name.missing", None), ("spec.unknown_field", 1), ("spec.demand.malformed", 4), ("spec.demand.unknown_unit", 5),
        ("spec.n_min.above_n_max", 6), ("spec.retries.limit.out_of_range", 8), ("spec.retries.unknown_field", 8),
    }  # fmt: skip
    code, _, err = here("submit", path)
    lines = err.splitlines()
    assert (code, len(lines)) == (2, len(expected))
    assert all(line.startswith(f"error: {path}: ") for line in lines)
    for one, line in expected:
        assert any(f"[{one}]" in text and (line is None or f": line {line}: " in text) for text in lines), one
    assert "did you mean name?" in err
    assert "did you mean backoff?" in err

    path.write_text("name: s\ncommand: [run, '{q}']\ndemand: {cpu: 1}\ncolour: red\nn_max: x\nsweep: {p: [1, 2]}\n")
    code, _, err = here("sweep", "run", path, "--dry-run", "-o", "json")
    error = json.loads(err)["error"]
    codes = ["sweep.placeholder.unknown", "spec.unknown_field", "spec.n_max.wrong_type"]
    assert (code, error["code"], [one["code"] for one in error["errors"]]) == (2, codes[0], codes)
