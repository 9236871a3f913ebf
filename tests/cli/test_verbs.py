"""Words of other tools lead to commands that exist."""

from __future__ import annotations

import re

from typer.main import get_command

from dorm.cli.main import app
from dorm.cli.verbs import _MEANT, replacement_for
from tests.cli.test_terminal import leaves


def test_each_word_leads_to_commands_and_is_not_one_itself() -> None:
    program = get_command(app)
    commands = set(leaves(program))
    words = {name.split()[0] for name in commands}
    for word, instead in _MEANT.items():
        assert word not in words, f"{word} is a command by now"
        named = re.findall(r"`dorm ([a-z][a-z-]*)", instead)
        assert named or "Ctrl-C" in instead or word in ("help", "version"), word
        assert set(named) <= words, (word, named)
    assert replacement_for("nonsense") == ""
