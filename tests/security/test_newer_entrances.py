"""A hostile colleague at the entrances that came after the first ones: files, containers, sweeps, gates, edits, the past.

Mallory knows the ids of Alice's apps.  What she gets about them is what she would get of apps that are not there, and nothing
that she reads names Alice, her apps or what they hold.  The same acts of Alice work.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from dorm.client.errors import Refused
from dorm.client.opening import open_client
from events import subjects
from events.log.records import LogError
from events.nats.access import read_credentials
from events.nats.connection import Connection
from tests.e2e.commands import done, dorm
from tests.e2e.local_up import leaving_nothing, talker, up
from tests.e2e.story import until

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.core.state import App
    from events.nats.access import Credentials

pytestmark = [pytest.mark.nats, pytest.mark.slow]
SCRIPT = (
    'echo s3cr3t > "$DORM_OUTPUTS/hidden"; echo s3cr3t > "$DORM_CHECKPOINT_DIR/step-5"; '
    'echo \'{"step": 5, "loss": 0.123456789}\' >> "$DORM_PROGRESS"; exec sleep 10000'
)
TELLING = (b"alice", b"private-project", b"s3cr3t", b"0.123456789", b"quiet-grid")
"""What only Alice's part of the cluster has."""


def private(name: str, **more: Any) -> dict[str, Any]:
    return {**talker(name), "command": ["sh", "-c", SCRIPT], "labels": {"of": "private-project"}, **more}


def commands(app: App) -> list[tuple[str, ...]]:
    """What touches one app."""
    named = app.id
    return [
        ("cp", f"{named}:hidden", "stolen"),
        ("exec", named, "--", "true"),
        ("checkpoints", named),
        ("cp", "spec.json", f"{named}:planted"),
        ("edit", named, "--set", "weight=2"),
        ("sweep", "cancel", "quiet-grid"),
    ]


def requests(app: App) -> list[tuple[str, str, Any]]:
    """Requests about one app, and about the tenant."""
    one = f"/v1/apps/{app.id}"
    reads = (
        "",
        "/logs",
        "/story",
        "/explain",
        "/progress",
        "/spec",
        "/checkpoints",
        "/speed",
        "/files",
        "/file?path=x",
    )
    acts = ("cancel", "kill", "hold", "release", "retry", "restart")
    return [
        *(("GET", one + path, None) for path in reads),
        *(("POST", f"{one}/{act}", {}) for act in acts),
        ("POST", f"{one}/notes", {"text": "mine"}),
        ("PUT", f"{one}/spec", private("hers", weight=3)),
        ("PATCH", f"{one}/spec", {"weight": 3}),
        ("PATCH", one, {"weight": 3}),
        ("POST", f"{one}/spec/try", {"patch": {"weight": 3}}),
        ("GET", "/v1/sweeps/alice//quiet-grid", None),
        ("GET", "/v1/sweeps/quiet-grid", None),
        ("POST", "/v1/sweeps/quiet-grid/cancel", {}),
        ("GET", "/v1/history?user=alice", None),
        ("GET", "/v1/usage?user=alice", None),
        ("GET", f"/v1/history/compare?app={app.id}&app=hers", None),
    ]


LISTS = (
    "/v1/apps?ended=true", "/v1/sweeps?ended=true", "/v1/nodes", "/v1/history?state=live", "/v1/usage?by=user,app",
    "/v1/events?limit=500", "/v1/decisions", "/v1/forecasts", "/v1/state", "/v1/view", "/v1/timeline", "/v1/diff?from=1",
    "/v1/policy", "/metrics",
)  # fmt: skip
"""What Mallory may read, and Alice must not be seen in."""


def revealed(said: bytes, asked: str) -> list[bytes]:
    """Return what an answer reveals about Alice beyond what the question held."""
    return [word for word in TELLING if word in said and word.decode() not in asked]


async def told(home: Path, who: Path, *arguments: str) -> tuple[int, str]:
    """Run a command as a user; its exit code and all that it printed."""
    code, out, err = await dorm(home, *arguments, env={"DORM_CREDENTIALS": str(who)})
    return code, out + err


async def test_newer_entrances_are_closed_to_a_hostile_user_of_the_same_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with (
        leaving_nothing(tmp_path) as folder,
        up(folder, "--trust-apps", "--api", "0", known=True, api=True) as cluster,
    ):
        home, keys, tokens = cluster.home, {}, {}
        for name in ("alice", "mallory"):
            keys[name] = tmp_path / f"{name}.json"
            await done(home, "user", "add", name, "--to", str(keys[name]))
            tokens[name] = json.loads(await done(home, "token", "add", "--for", name, "-o", "json"))["secret"]
        (tmp_path / "grid.yaml").write_text(json.dumps(private("quiet-grid", array=2, hold=True)))
        (tmp_path / "spec.json").write_text("{}")
        me = read_credentials(keys["alice"])
        async with await open_client(cluster.url, "local", credentials=me) as alice:
            app = await alice.submit(private("hers"))
            code, said = await told(home, keys["alice"], "sweep", "run", "grid.yaml")
            assert code == 0, said
            await until(alice, lambda state: state.apps[app.id].step == 5, "it works")
            before = await alice.app(app.id)
            for words in commands(app):
                code, said = await told(home, keys["mallory"], *words)
                assert code not in (0, 70), (words, said)
                assert not revealed(said.encode(), " ".join(words)), (words, said)
            await over_http(cluster.running.dashboard, tokens, app)
            await past_the_client(read_credentials(keys["mallory"]), app)
            await dependent(read_credentials(keys["mallory"]), app)
            after = await alice.app(app.id)
            assert (after.spec, after.weight, after.phase, after.gates) == (
                before.spec, before.weight, "running", before.gates,
            )  # fmt: skip
            state = await alice.state()
            assert sum(one.name.startswith("quiet-grid") and not one.ended for one in state.apps.values()) == 2
            # The control: Alice does with her own app what Mallory could not.
            for words in commands(app)[:3]:
                code, said = await told(home, keys["alice"], *words)
                assert code == 0, (words, said)
            assert (tmp_path / "stolen").read_text() == "s3cr3t\n"


async def over_http(api: str, tokens: dict[str, str], app: App) -> None:
    async def ask(who: str, method: str, path: str, body: Any) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {tokens[who]}"}
        async with session.request(method, api + path, json=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async with aiohttp.ClientSession() as session:
        for method, path, body in requests(app):
            status, said = await ask("mallory", method, path, body)
            assert status in (403, 404), (method, path, status, said)
            assert not revealed(said, path), (path, said)
        for path in LISTS:
            status, said = await ask("mallory", "GET", path, None)
            assert status in (200, 403), (path, status, said)
            assert not revealed(said, path), (path, said[:3000])
        status, said = await ask("alice", "GET", "/v1/events?limit=500", None)
        assert status == 200
        assert b"private-project" in said, "the control"


async def past_the_client(me: Credentials, app: App) -> None:
    """Ask the node itself, on every subject that could be Alice's."""
    connection = await Connection.open(me.url, me.cluster, credentials=me)
    try:
        asked = [subjects.ask(me.cluster, "node-1", what, "alice") for what in ("logs", "files", "put")]
        asked += [
            subjects.session(me.cluster, "node-1", what, tenant, who)
            for what in ("session", "input")
            for tenant, who in (("alice", "alice"), ("alice", "mallory"), ("mallory", "alice"))
        ]
        asked += [subjects.view(me.cluster, "alice")]
        for subject in asked:
            with pytest.raises(LogError) as refused:
                async for _ in connection.bus.ask(subject, b"\x80", timeout=3):
                    pass
            assert refused.value.code == "log.no_permission", (subject, refused.value.code)
    finally:
        await connection.close()


async def dependent(me: Credentials, app: App) -> None:
    """Apps that depend on Alice's are refused as they would be if it were not there."""
    async with await open_client(me.url, me.cluster, credentials=me) as mallory:
        for more in ({"from": app.id}, {"after": [app.id]}, {"after": ["hers"]}):
            with pytest.raises(Refused) as refused:
                await mallory.submit({**talker("dependent"), **more})
            assert not revealed(str(refused.value).encode(), app.id), str(refused.value)
