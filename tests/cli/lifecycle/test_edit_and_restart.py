"""`dorm edit` and `dorm restart` as a plain user types them, on a cluster that knows its users."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml

from dorm.cli.lifecycle import from_file
from dorm.client.opening import open_client
from events.nats.access import read_credentials
from events.spec import check_spec
from tests.e2e.commands import done, dorm, refused
from tests.e2e.local_up import Up, leaving_nothing, up, write_spec
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dorm.core.state import State

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]
SAYS = """\
import os, time
print("colour", os.environ.get("COLOUR"), flush=True)
with open(os.environ["DORM_PROGRESS"], "a") as file:
    file.write('{"step": 3}\\n{"checkpoint": 3}\\n')
time.sleep(600)
"""


def app_of(name: str, **more: Any) -> dict[str, Any]:
    command = ["python3", "-c", SAYS]
    return {"name": name, "command": command, "demand": {"cpu": "250m"}, "n_min": 1, "n_max": 2, "grace": "5s", **more}


class Users:
    """A cluster, and people with their own credentials."""

    def __init__(self, cluster: Up, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder

    def env(self, name: str) -> dict[str, str]:
        return {"DORM_CREDENTIALS": str(self.folder / f"{name}.json")}

    async def done(self, *words: str, of: str = "ann", **more: str) -> str:
        return await done(self.cluster.home, *words, env={**self.env(of), **more})

    async def ships(self, *words: str) -> str:
        """As `done`, for a command that reports on stderr what it has sent."""
        code, out, err = await dorm(self.cluster.home, *words, env=self.env("ann"))
        assert code == 0, err
        return out

    async def refused(self, *words: str, code: int = 1, of: str = "ann") -> str:
        return await refused(self.cluster.home, *words, code=code, env=self.env(of))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def users(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Users]:
    folder = tmp_path_factory.mktemp("steering")
    async with leaving_nothing(folder), up(folder, "--trust-apps", known=True) as cluster:
        for name in ("ann", "ben", "mallory"):
            await done(cluster.home, "user", "add", name, "--to", str(folder / f"{name}.json"))
        yield Users(cluster, folder)


async def test_an_edit_is_shown_and_made_and_runs(users: Users, tmp_path: Path) -> None:
    await users.done("submit", write_spec(tmp_path, app_of("own")))
    await users.done("wait", "own", "--for", "running")
    async with await open_client(
        users.cluster.url, "local", credentials=read_credentials(users.folder / "ann.json")
    ) as ann:

        async def generation(number: int) -> State:
            return await until(
                ann,
                lambda state: any(
                    app.name == "own" and app.generation == number and app.phase == "running"
                    for app in state.apps.values()
                ),
                f"generation {number} runs",
            )

        await until(ann, lambda state: any(app.checkpoint == 3 for app in state.apps.values()), "it saved a checkpoint")
        shown = await users.done("edit", "own", "--set", "env.COLOUR=red", "--set", "weight=2", "--dry-run")
        assert shown.splitlines() == [
            "  weight: 1.0 -> 2.0  (at once)",
            '  env: {} -> {"COLOUR":"red"}  (by a restart)',
            "own is checkpointed and restarted: 2 containers; its pause was never measured",
        ]
        assert "usage.not_asked" in await users.refused("edit", "own", "--set", "weight=2", code=2)
        assert "edit.another_app" in await users.refused("edit", "own", "--set", "name=other", "--yes", code=2)
        assert "spec.demand.too_large" in await users.refused("edit", "own", "--set", "demand.cpu=99", "--yes")
        assert "app.not_found" in await users.refused("edit", "own", "--set", "weight=9", "--yes", of="mallory")

        said = await users.done("edit", "own", "--set", "env.COLOUR=red", "--set", "weight=2", "--yes")
        assert said.splitlines()[-1] == "own has revision 2; it restarts now"
        await generation(2)
        assert "colour red" in await users.done("logs", "own")
        document = json.loads(await users.done("describe", "own", "-o", "json"))
        assert (document["revision"], document["revision_running"], document["weight"]) == (2, 2, 2)
        assert "2, of weight, env by ann" in await users.done("describe", "own")

        editor = tmp_path / "editor"
        editor.write_text('#!/bin/sh\nsed -i s/red/blue/ "$1"\n')
        editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
        said = await users.done("edit", "own", "--yes", EDITOR=str(editor))
        assert said.splitlines()[-1] == "own has revision 3; it restarts now"
        await generation(3)
        assert (await users.done("edit", "own", "--yes", EDITOR="true")).startswith("nothing to change")
        assert "blue" in await users.done("logs", "own")

        assert "starts again from the checkpoint that it saves now" in await users.done("restart", "own")
        state = await generation(4)
        (app,) = (app for app in state.apps.values() if app.name == "own")
        last = app.generations[4]
        assert (last.resume, last.revision, len(last.containers)) == (True, 3, 2)
        assert "starts again from the start" in await users.done("restart", "own", "--fresh", "--reason", "odd")
        state = await generation(5)
        assert not state.apps[app.id].generations[5].resume
        story = await users.done("story", "own")
    assert "ann edited its spec (weight, env): revision 2" in story
    assert "ann restarted it: from the start, without its checkpoint, with its retries reset: odd" in story
    assert await users.done("cancel", "own", "--wait") == "own is cancelled\n"
    stopped = json.loads(await users.done("describe", "own", "-o", "json"))["containers_now"]
    assert [one["state"] for one in stopped] == ["exited", "exited"]


async def test_work_that_a_request_undoes_is_told(users: Users, tmp_path: Path) -> None:
    waits = ["python3", "-c", "import time; time.sleep(600)"]
    await users.done("submit", write_spec(tmp_path, app_of("plain", command=waits, n_max=1)))
    await users.done("submit", write_spec(tmp_path, app_of("hopes", command=waits, resume=[*waits, "again"])))
    await users.done("wait", "plain", "hopes", "--for", "running")
    undone = "; it restarts from the beginning, since it has reported no checkpoint: "
    assert undone not in await users.done("scale", "plain", "1")
    said = await users.done("restart", "plain")
    assert said.startswith("plain was running, and starts again from the start; `dorm ps`")
    assert undone in said
    said = await users.done("restart", "hopes")
    assert "from the checkpoint that it saves now, or from the start if it reports none; " in said
    assert undone not in said
    async with await open_client(
        users.cluster.url, "local", credentials=read_credentials(users.folder / "ann.json")
    ) as ann:

        async def runs_as(generation: int) -> None:
            def again(state: State) -> bool:
                (app,) = (app for app in state.apps.values() if app.name == "plain")
                return app.phase == "running" and app.generation == generation

            await until(ann, again, "it runs again")

        await runs_as(2)
        assert undone in await users.done("scale", "plain", "2")
        await runs_as(3)
    assert undone in await users.done("hold", "plain")
    for name in ("plain", "hopes"):
        await users.done("cancel", name, "--wait")


async def test_an_app_that_no_node_can_start_fails_and_continues_once_it_can(users: Users, tmp_path: Path) -> None:
    program = tmp_path / "program"
    await users.done("submit", write_spec(tmp_path, app_of("late", command=[str(program)], n_max=1)), of="ben")
    failed = await users.refused("wait", "late", of="ben")
    assert failed.endswith("[app.failed]")
    assert f"{program}: No such file or directory; it failed on node-" in failed
    assert ", and no other node could take it (a retry would end in the same way) [app.failed]" in failed
    right = tmp_path / "right"
    right.write_text("#!/bin/sh\nexit 0\n")
    right.chmod(0o755)
    said = await users.done("edit", "late", "--set", f"command=[{right}]", "--yes", of="ben")
    assert said.endswith("late has revision 2; `dorm restart late` starts it\n")
    assert "late was failed, and starts again from the start" in await users.done("restart", "late", of="ben")
    assert await users.done("wait", "late", of="ben") == "late completed\n"
    assert "has completed" in await users.refused("restart", "late", of="ben")


async def test_gates_and_the_shipped_folder_change_by_an_edit(users: Users, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('first')\n")
    document = {
        "name": "shipped",
        "command": ["python3", "train.py"],
        "demand": {"cpu": "250m"},
        "hold": True,
        "workdir": ".",
    }
    assert "is accepted" in await users.ships("submit", write_spec(tmp_path, document))
    (tmp_path / "train.py").write_text("print('second')\n")
    document |= {"hold": False, "start_after": "2s", "max_runtime": "1h"}
    edit = ("edit", "shipped", "-f", write_spec(tmp_path, document))
    shown = await users.done(*edit, "--dry-run")
    assert [line.split(":")[0].strip() for line in shown.splitlines()[:4]] == [
        "hold",
        "start_after",
        "max_runtime",
        "workdir",
    ]
    said = await users.ships(*edit, "--yes")
    assert said.endswith("shipped has revision 2\n")
    assert (await users.done(*edit, "--yes")).startswith("nothing to change"), "the folder is the same"
    assert await users.done("wait", "shipped") == "shipped completed\n"
    assert await users.done("logs", "shipped") == "second\n"


async def test_words_of_other_tools_lead_to_dorms_commands(users: Users) -> None:
    for word, meant in (
        ("stop", "dorm cancel"),
        ("squeue", "dorm ps"),
        ("requeue", "dorm restart"),
        ("attach", "dorm logs"),
    ):
        said = await users.refused(word, "own", code=2)
        assert f"No such command '{word}'; use `{meant}" in said


async def test_a_file_without_a_python_keeps_the_path_of_the_apps(tmp_path: Path) -> None:
    """It may be that of a shell, which the file does not name; another one would restart the app."""
    file = tmp_path / "app.yaml"
    for before, written, after in (
        ("/venv/bin/python", "", "/venv/bin/python"),
        ("3.11", "", ""),
        ("/a", "3.12", "3.12"),
    ):
        document = {"name": "app", "command": ["true"], "demand": {"cpu": 1}}
        file.write_text(yaml.safe_dump({**document, **({"python": written} if written else {})}))
        assert from_file(file, check_spec({**document, "python": before})).get("python", "") == after
