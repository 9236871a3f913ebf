"""Commands as the log shows them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.sessions import HIDDEN, LONGEST_COMMAND, shown


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["nvidia-smi", "-l", "1"], "nvidia-smi -l 1"),
        (["sh", "-c", "echo a b"], "sh -c 'echo a b'"),
        (["curl", "--token", "abc", "x"], f"curl --token {HIDDEN} x"),
        (["curl", "--api-key=abc"], f"curl --api-key={HIDDEN}"),
        (["env", "WANDB_API_KEY=0123abc", "python"], f"env WANDB_API_KEY={HIDDEN} python"),
        (["train", "--tokens", "512", "--max-tokens=8"], "train --tokens 512 --max-tokens=8"),
        (["git", "clone", "https://ann:pass1@host/x"], f"git clone {HIDDEN}host/x"),
        (["ls", "--password", "-l"], "ls --password -l"),
    ],
)
def test_a_command_is_one_line_without_secrets(command: list[str], text: str) -> None:
    assert shown(command) == text


@pytest.mark.parametrize(
    "script",
    ["export DB_PASSWORD=hunter2; run", "run --password hunter2", "TOKEN='hunter2 x' run", 'curl -H "token: hunter2"'],
)
def test_secrets_within_a_script_are_hidden(script: str) -> None:
    assert "hunter2" not in shown(["sh", "-c", script])


@given(st.lists(st.text(max_size=40), min_size=1, max_size=300))
def test_it_is_bounded_and_quoted_for_a_shell(command: list[str]) -> None:
    text = shown(command)
    assert len(text) <= LONGEST_COMMAND
    if HIDDEN not in text and len(text) < LONGEST_COMMAND and len(command) < 200:
        assert shlex.split(text) == command
