"""What others wrote reaches no terminal as anything but text, whichever command prints it.

The commands are taken from the program itself: a new one is listed here with arguments, or with the reason why it prints
nothing that others wrote.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from rich.text import Text
from typer.core import TyperGroup
from typer.main import get_command

import dorm.cli.output as output
from dorm.cli.main import app as program
from dorm.cli.output import SafeConsole, show_document
from dorm.cli.terminal import clean, in_document, one_line
from events import kinds as k
from events.codec import decode, encode
from replay.export.export import export
from tests.e2e import commands
from tests.lab.machines.nats_server import NatsServer
from tests.replay.made_log import Story, log_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from events.log.records import Record


EVIL = "\x1b[31mred\x1b]8;;http://evil\x1b\\link\x07\x9b2J\x7f\u202egnp.\u2066x\u200b\u2028[bold]b[/] :skull:\rFORGED\nFORGED"
FORBIDDEN = sorted(set("\x1b\x07\x9b\x7f\u202e\u2066\u200b\u2028\r"))
FORMATS = ("table", "wide", "json", "yaml")

NO_FOREIGN_TEXT = "prints what this machine, its own files or its own simulation say"
ACTS = "acts, and prints the answer of its own cluster"
RAW = "prints what containers print, raw, as kubectl and docker do"
COMMANDS: dict[str, list[list[str]] | str] = {
    "ps": [["ps"], ["ps", "--all"]],
    "describe": [["describe", "one"], ["describe", "two"], ["describe", "n0"]],
    "explain": [["explain", "one"], ["explain", "two"]],
    "story": [["story", "one"], ["story", "n0"]],
    "plan": [["plan"]],
    "check": [["check", "--", "true"]],
    "nodes": [["nodes"]],
    "events": [["events", "--no-follow"]],
    "masters": [["masters"]],
    "doctor": [["doctor", "--all"]],
    "state": [["state"], ["state", "one"], ["state", "n0"]],
    "diff": [["diff", "3"], ["diff", "5", "14"]],
    "usage": [["usage"], ["usage", "--by", "user,app,node"]],
    "compare": [["compare", "one", "two"]],
    "incident": [["incident", "2", "--output", "ticket.dorm"]],
    "policy show": [["policy", "show"]],
    "policy get": [["policy", "get", "quiet"]],
    "log verify": [["log", "verify"]],
    "replay state": [["replay", "state"]],
    "replay verify": [["replay", "verify"]],
    "replay timeline": [["replay", "timeline", "--output", "timeline.html"]],
    "replay page": [["replay", "page", "--output", "page.html"]],
    "replay open": "prints the file's name and an address: tests/web/test_archive.py",
    "replay export": [["replay", "export", "again.dorm"]],
    "replay bisect": [["replay", "bisect", "one completed before 23:59", "--policies", "static", "--tries", "3"]],
    "top": [["top", "--once"], ["top", "one", "--once"]],
    "webhooks list": [["webhooks", "list"]],
    "webhooks secret": [["webhooks", "secret", "hook"]],
    "user list": [["user", "list"]],
    "token list": [["token", "list"]],
    "whatif": [["whatif", "--at", "12"]],
    "shadow": [["shadow", "--policy", "static", "--once", "--no-publish"]],
    "logs": RAW,
    "checkpoints": "prints names of files, as tables do: tests/cli/outputs/test_outputs.py",
    "cp": "prints names of files, as tables do: tests/cli/outputs/test_outputs.py",
    "run": RAW,
    "exec": RAW,
    "shell": RAW,
    "port-forward": "prints an address of this machine and the app's name",
    "replay import": "prints counts of records",
    "export traces": "prints a count of spans",
    "replay step": "has a screen of its own: tests/cli/replay/test_step.py",
    **dict.fromkeys(
        (
            "submit",
            "update",
            "scale",
            "edit",
            "restart",
            "wait",
            "cancel",
            "kill",
            "drain",
            "policy set",
            "log seal",
            "log rotate",
        ),
        ACTS,
    ),
    **dict.fromkeys(("pause", "resume", "retry", "nodes maintenance", "nodes up", "nodes forget", "nodes trust"), ACTS),
    "sweep list": [["sweep", "list", "--all"]],
    "history": [["history"], ["history", "one", "two", "--compare"]],
    "sweep show": [["sweep", "show", "lr"], ["sweep", "show", "lr", "--output", "csv"]],
    **dict.fromkeys(("sweep run", "sweep edit", "sweep cancel"), ACTS),
    **dict.fromkeys(("hold", "release", "note"), ACTS),
    **dict.fromkeys((f"webhooks {name}" for name in ("add", "remove", "rotate", "enable", "test")), ACTS),
    **dict.fromkeys((f"files {name}" for name in ("list", "limits", "get", "purge")), ACTS),
    **dict.fromkeys((f"deploy {name}" for name in ("example", "keys", "install")), NO_FOREIGN_TEXT),
    **dict.fromkeys(("backup", "deploy found", "deploy restore"), ACTS),
    **dict.fromkeys(("init", "dashboard", "node intro", "node join", "node remove", "token add", "token remove"), ACTS),
    **dict.fromkeys((f"user {name}" for name in ("add", "key", "remove")), ACTS),
    **dict.fromkeys((f"context {name}" for name in ("add", "list", "remove", "show", "use")), NO_FOREIGN_TEXT),
    **dict.fromkeys(
        ("up", "master", "agent", "serve", "views", "demo", "webhooks run"),
        "logs, by `dorm.cli.program_logs`: see below",
    ),
    **dict.fromkeys(
        ("simulate", "schema", "spec init", "completion", "policy list", "log key", "log limit", "log show"),
        NO_FOREIGN_TEXT,
    ),
}
_HAS_FORMATS = {
    "webhooks list",
    "webhooks secret",
    "ps",
    "describe",
    "explain",
    "story",
    "plan",
    "nodes",
    "events",
    "masters",
    "state",
    "diff",
    "usage",
    "compare",
    "sweep list",
    "history",
}


def leaves(group: Any, path: str = "") -> Iterator[str]:
    context = group.make_context("dorm", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, TyperGroup):
            if command.invoke_without_command:
                yield f"{path}{name}"
            yield from leaves(command, f"{path}{name} ")
        else:
            yield f"{path}{name}"


def test_every_command_is_looked_at() -> None:
    known = set(leaves(get_command(program)))
    assert known - {one for one in known if one.startswith("bench ")} == set(COMMANDS)


def evil_log() -> list[Record]:
    """A short history in which every text that others may choose is hostile."""
    story = Story(nodes=0)
    story.say(
        k.NodeJoined(
            node="n0",
            address=EVIL,
            capacity={"cpu": 3000, f"gpu{EVIL}": 2},
            ports=(20000, 20099),
            labels={EVIL: EVIL, "zone": EVIL},
            runtime=EVIL,
            build=EVIL,
        ),
        "n0",
    )
    story.say(k.NodeJoined(node=f"n{EVIL}", address="b", capacity={"cpu": 500}, ports=(20000, 20099)), "n1")
    story.submit("one", n_max=2, env={"KEY": "\x1b[31m"}, retries={"limit": 3, "backoff": "1s"})
    story.submit("two", n_max=1)
    story.submit("fifth", n_max=1, require='zone == "\x1b[31mred"')
    story.submit("fourth", user=EVIL)
    story.submit("three", n_max=1)
    story.submit("lr-0000", n_max=1, group={"name": "lr", "count": 2, "parameters": {"data": EVIL}})
    story.submit(EVIL)
    story.settle()
    story.say(k.AppCancelRequested(app="three", reason=EVIL), EVIL.replace(".", "").replace("\n", "").strip())
    story.say(k.PolicyChanged(policy=EVIL))
    story.say(k.PolicyChanged(set_params={EVIL: EVIL}))
    story.say(k.NodeDrainRequested(node=EVIL))
    for name in ("hook", EVIL):
        story.say(k.WebhookSet(webhook=name, url=EVIL, events=[EVIL, "app.ended"], key=EVIL[:60]))
        story.say(k.WebhookDisabled(webhook=name, code=EVIL[:60], reason=EVIL))
    story.settle()
    one = story.state.apps[story.state.names["one"]]
    for slot, container in list(one.generations[one.generation].containers.items()):
        story.say(
            k.ContainerExited(
                app=one.id, generation=one.generation, slot=slot, node=container.node, exit_code=1, message=EVIL
            ),
            container.node,
        )
    story.settle()
    return [_signed(record) for record in story.records]


def _signed(record: Record) -> Record:
    """By a user with a hostile name, who also wrote the master's reasons."""
    event = decode(record)
    if isinstance(event, k.Round):
        return record
    return msgspec.structs.replace(record, body=encode(msgspec.structs.replace(event, by=EVIL, cause=EVIL)))


def check(what: str, out: str, err: str, *, document: bool = False) -> None:
    found = [sign for sign in FORBIDDEN if sign in out + err]
    assert not found, f"{what} prints {found}: {out + err!r}"
    if not document:
        forged = [line for line in (out + err).splitlines() if line.startswith("FORGED")]
        assert not forged, f"{what} prints a line that others made: {forged} in {out + err}"


@pytest.fixture
async def cluster(tmp_path: Path) -> Any:
    """The log on a server, where live commands read it."""
    path = tmp_path / "evil.dorm"
    await export(log_of(evil_log()), path)
    (tmp_path / "nats").mkdir()
    server = NatsServer(tmp_path / "nats")
    await server.start()
    try:
        environment = {"DORM_URL": server.url, "DORM_CLUSTER": "evil"}
        code, out, err = await commands.dorm(tmp_path / "home", "replay", "import", str(path), env=environment)
        assert code == 0, out + err
        yield tmp_path, environment
    finally:
        await server.stop()


@pytest.mark.nats
@pytest.mark.timeout(600)
@pytest.mark.soak
async def test_no_command_prints_more_than_text(cluster: Any) -> None:
    home, environment = cluster
    shown = 0
    for name, ways in COMMANDS.items():
        for way in ways if isinstance(ways, list) else ():
            for form in FORMATS if name in _HAS_FORMATS else ("",):
                words = [str(home / one) if one.endswith((".html", ".dorm")) else one for one in way]
                words += ["-o", form] if form else []
                _, out, err = await commands.dorm(home / "home", *words, env={**environment, "COLUMNS": "120"})
                check(" ".join(words), out, err, document=form in ("json", "yaml"))
                shown += "red" in out
    assert shown >= 12, "most of them print something that others wrote"


def test_errors_and_logs_are_text_as_well(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import structlog

    from dorm.cli import program_logs as logs
    from dorm.cli.errors import line, report_error

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure(0, as_json=False)
    try:
        structlog.get_logger().warning(EVIL, app=EVIL, key=("a", EVIL))
    finally:
        structlog.reset_defaults()
    report_error(line(Exception(EVIL)), "failed")
    said = capsys.readouterr().err
    assert "red" in said
    assert "\x1b[31mred" not in said
    check("stderr", "", re.sub("\x1b\\[[0-9;]*m", "", said))  # Colors are the renderer's own.


def test_the_console_draws_no_control_characters_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console = SafeConsole(width=200)
    console.print(Text(f"reason: {EVIL}"))
    console.print(f"[link=http://evil]x[/link] {EVIL}")
    out = capsys.readouterr().out
    assert not [sign for sign in FORBIDDEN if sign in out]
    assert "[link=http://evil]x[/link]" in out
    assert r"\x1b[31mred" in out


@pytest.mark.parametrize("form", [output.Format.json, output.Format.yaml])
def test_documents_are_the_same_data(form: output.Format, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"by": EVIL, EVIL: ["naïve 漢字 😀", "\U000e0041"]}
    show_document(document, form)
    out = capsys.readouterr().out
    assert not [sign for sign in FORBIDDEN if sign in out]
    assert (json.loads(out) if form is output.Format.json else yaml.safe_load(out)) == document


def test_plain_text_is_unchanged() -> None:
    text = "naïve 漢字 😀 a\u00a0b [x]"
    assert clean(text) == one_line(text) == in_document(text) == text
    assert clean("a\n\tb") == "a\n\tb"
    assert one_line("a\n\tb\x1b\u202e") == r"a\n\tb\x1b\u202e"


def test_all_output_goes_through_the_console() -> None:
    """Consoles are made in `output`, and lines are printed by `say`: so a new command can't forget it."""
    allowed = {
        "output.py": {"Console(", "sys.stdout.write("},
        "terminal.py": {"print("},
        "main.py": {"print("},
        "completion.py": {"print("},
        "events.py": {"sys.stdout.write("},
    }
    for path in sorted(Path(output.__file__).parent.rglob("*.py")):
        text = path.read_text()
        found = {what for what in ("rich.print", "sys.stdout.write(", "sys.stderr.write(") if what in text}
        found |= {"print("} if any(line.lstrip().startswith("print(") for line in text.splitlines()) else set()
        found |= {"Console("} if "= Console(" in text or " Console(" in text else set()
        assert found <= allowed.get(path.name, set()), f"{path.name}: {found}"
