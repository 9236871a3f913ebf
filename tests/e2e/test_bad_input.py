"""Bad input: one clear line at the client, or an answer on the log; everything else continues."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgpack
import nats
import nats.js.errors
import pytest
import pytest_asyncio
from nats.errors import MaxPayloadError

from dorm.local.cluster import LocalCluster, LocalOptions
from events import subjects
from events.codec import decode
from events.kinds import AppRejected, Round
from tests.e2e.commands import done, refused
from tests.e2e.local_up import Up, leaving_nothing, named, talker, trainer, up, write_spec
from tests.e2e.ports import own_ports
from tests.e2e.story import IMAGE, check_log, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from nats.aio.client import Client as NATS

    from dorm.client.client import Client

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """With an app that trains all the while, and was never disturbed when all is over."""
    async with leaving_nothing(tmp_path_factory.mktemp("bad")) as folder, up(folder) as running:
        await done(running.home, "submit", write_spec(folder, trainer("witness", 1_000_000, n_max=1, n_min=1)))
        yield running
        async with running.client() as client:
            state = await client.state()
            before = named(state, "witness")
            assert (before.phase, before.failures, before.adjustments) == ("running", 0, 0)
            assert state.epoch == 1, "the only master leads on, however busy the machine is"
            step = before.step
            await until(client, lambda s: named(s, "witness").step > step, "the witness trains on")
            await check_log(client)
        await done(running.home, "cancel", "witness", "--wait")


GOOD = {"name": "bad", "command": ["true"], "demand": {"cpu": "100m"}}
SPECS: list[tuple[dict[str, Any], str]] = [
    ({"comand": ["true"]}, "comand: "),
    ({"n_min": "two"}, "n_min: "),
    ({"n_min": -1}, "n_min: "),
    ({"n_min": 10**30}, "n_min: "),
    ({"n_min": 3, "n_max": 2}, "n_min: "),
    ({"weight": float("nan")}, "weight: "),
    ({"weight": float("inf")}, "weight: "),
    ({"weight": 0}, "weight: "),
    ({"demand": {"cpu": -1}}, "demand.cpu"),
    ({"demand": {"cpu": "1e400"}}, "demand.cpu"),
    ({"demand": {"cpu": float("nan")}}, "demand.cpu"),
    ({"demand": {"memory": "12XB"}}, "demand.memory"),
    ({"demand": {}}, "demand: "),
    ({"command": "true"}, "command: "),
    ({"command": []}, "command: "),
    ({"command": [""]}, "command: "),
    ({"name": "Not A Name"}, "name: "),
    ({"name": None}, "name: "),
    ({"grace": "soon"}, "grace: "),
    ({"retries": {"limit": -1}}, "retries.limit: "),
    ({"retries": 3}, "retries: "),
    ({"env": {"DORM_APP": "x"}}, "env.DORM_APP"),
    ({"env": {"A": [1]}}, "env"),
    ({"labels": {"\x00": "x"}}, "labels"),
]


@pytest.mark.parametrize(("change", "reason"), SPECS, ids=[str(change)[:40] for change, _ in SPECS])
async def test_a_bad_spec_is_refused_here_and_by_the_master(
    cluster: Up, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    document = {**GOOD, **change}
    # YAML's own way to write what JSON has no numbers for.
    text = json.dumps(document).replace("NaN", ".nan").replace("Infinity", ".inf")
    line = await refused(cluster.home, "submit", "-", stdin=text, code=2)
    assert line.removeprefix("standard input: ").removeprefix("line 1: ").startswith(reason)
    assert " [spec." in line
    packed = _packed(document)
    if packed is not None:
        assert (await _rejected(cluster, packed)).reason.startswith(reason)


def _packed(document: dict[str, Any]) -> bytes | None:
    try:
        body: bytes = msgpack.packb({"kind": "AppSubmitted", "spec": document})
    except OverflowError:
        return None
    return body


async def test_apps_that_the_cluster_can_never_run(cluster: Up, tmp_path: Path) -> None:
    big = write_spec(tmp_path, {**GOOD, "name": "big", "demand": {"cpu": 64}})
    assert "[spec.demand.too_large]" in await refused(cluster.home, "submit", big, code=1)
    wide = write_spec(tmp_path, {**GOOD, "name": "wide", "n_min": 500})
    assert "[spec.n_min.no_room]" in await refused(cluster.home, "submit", wide, code=1)
    odd = write_spec(tmp_path, {**GOOD, "name": "odd", "demand": {"quantum": 1}})
    assert "demand.quantum" in await refused(cluster.home, "submit", odd, code=1)
    picky = write_spec(tmp_path, {**GOOD, "name": "picky", "require": 'gpu_type == "h100"'})
    assert "[spec.require.no_node]" in await refused(cluster.home, "submit", picky, code=1)
    whole = write_spec(tmp_path, {**GOOD, "name": "whole", "gang": 500})
    assert "[spec.demand.too_large]" in await refused(cluster.home, "submit", whole, code=1)
    again = write_spec(tmp_path, {**GOOD, "name": "witness"})
    assert "[spec.name.taken]" in await refused(cluster.home, "submit", again, code=1)
    assert "n_min" in await refused(cluster.home, "update", "witness", "--n-min", "5", code=1)
    assert "--n-max" in await refused(cluster.home, "update", "witness", "--n-max", "0", code=2)
    assert "--weight" in await refused(cluster.home, "update", "witness", "--weight", "nan", code=2)


BODIES: list[tuple[str, bytes, str]] = [
    ("neither", b"\xc1 what is this", "the body is neither MessagePack nor JSON"),
    ("empty", b"", "the body is empty"),
    ("broken JSON", b'{"spec": {"name": "x"', "the body is neither MessagePack nor JSON"),
    ("JSON array", b"[1, 2]", ""),
    ("packed array", msgpack.packb([1, 2]), "an event is a map, not list"),
    ("no spec", b"{}", "[spec.not_a_map]"),
    ("spec is text", b'{"spec": "run it"}', "[spec.not_a_map]"),
    ("other kind", b'{"kind": "Round", "spec": {}}', "kind Round is not allowed on subject"),
    ("version", b'{"v": "one", "spec": {}}', "AppSubmitted: "),
    ("1 MB", msgpack.packb({"spec": {**GOOD, "env": {"A": "x" * 1_000_000}}}), "the submission has 1,0"),
    ("deep", b'{"spec": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ""),
]


@pytest.mark.parametrize(("body", "reason"), [body[1:] for body in BODIES], ids=[body[0] for body in BODIES])
async def test_a_bad_body_is_answered_on_the_log(cluster: Up, body: bytes, reason: str) -> None:
    answer = await _rejected(cluster, body)
    assert reason in f"{answer.reason} [{answer.code}]"


async def test_a_body_that_is_too_large_is_refused_by_the_server(cluster: Up) -> None:
    async with _raw(cluster) as raw:
        with pytest.raises(nats.js.errors.BadRequestError, match="exceeds maximum allowed"):
            await raw.jetstream().publish(subjects.fact("local", "AppSubmitted", "stranger"), b" " * 2_000_000)


async def _rejected(cluster: Up, body: bytes) -> AppRejected:
    """The master's answer to a body on the subject of submissions."""
    async with cluster.client() as client, _raw(cluster) as raw:
        ack = await raw.jetstream().publish(subjects.fact("local", "AppSubmitted", "stranger"), body)
        return await _answer(client, ack.seq)


async def _answer(client: Client, seq: int) -> AppRejected:
    async with asyncio.timeout(20.0):
        async for record in client.records(after=seq, follow=True):
            event = decode(record)
            for fact in event.events if isinstance(event, Round) else []:
                if isinstance(fact, AppRejected) and fact.cause in (str(seq), fact.submission):
                    return fact
    raise AssertionError("a log that is followed does not end")


@contextlib.asynccontextmanager
async def _raw(cluster: Up) -> AsyncIterator[NATS]:
    """Any client of any language."""
    raw = await nats.connect(cluster.url)
    try:
        yield raw
    finally:
        await raw.close()


async def test_ten_megabytes_are_refused_wherever_they_come_from(cluster: Up, tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    file.write_text(json.dumps({**GOOD, "env": {"A": "x" * 10_000_000}}))
    assert "[file.too_large]" in await refused(cluster.home, "submit", str(file), code=2)
    async with _raw(cluster) as raw:
        with pytest.raises(MaxPayloadError):
            await raw.publish(subjects.fact("local", "AppSubmitted", "stranger"), b"x" * 10_000_000)


async def test_a_round_by_a_stranger_is_not_believed(cluster: Up) -> None:
    async with cluster.client() as client, _raw(cluster) as raw:
        before = named(await client.state(), "witness")
        body = {
            "kind": "Round", "epoch": 99, "basis": 0, "allocated": False,
            "events": [{"kind": "AppFailed", "app": before.id, "generation": 1, "reason": "because"},
                       {"kind": "MasterElected", "epoch": 99}],
        }  # fmt: skip
        for kind in ("AppSubmitted", "Round", "AppCancelRequested", "MasterElected"):
            await raw.jetstream().publish(subjects.fact("local", kind, "stranger"), json.dumps(body).encode())
        state = await client.state()
        assert named(state, "witness").ended == ""
        assert state.epoch < 99


async def test_a_command_that_does_not_exist(cluster: Up, tmp_path: Path) -> None:
    file = write_spec(tmp_path, {**talker("typo"), "command": ["pyhton3", "x.py"]})
    async with cluster.client() as client:
        await done(cluster.home, "submit", file)
        app = named(await until(client, lambda s: bool(named_or_none(s, "typo")), "it fails"), "typo")
        assert app.ended == "failed"
        assert "pyhton3" in app.end_reason


def named_or_none(state: Any, name: str) -> Any:
    app = state.find_app(name)
    return app if app is not None and app.ended else None


FILES: list[tuple[str, Callable[[Path], object], str]] = [
    ("missing.yaml", lambda path: None, "system.enoent"),
    ("directory.yaml", lambda path: path.mkdir(), "system.eisdir"),
    ("binary.yaml", lambda path: path.write_bytes(bytes(range(256))), "file.not_text"),
    ("nul.yaml", lambda path: path.write_bytes(b"name: \x00\x01"), "file.not_yaml"),
    ("empty.yaml", lambda path: path.write_text(""), "spec.not_a_map"),
    ("list.yaml", lambda path: path.write_text("- a\n- b\n"), "spec.not_a_map"),
    ("text.yaml", lambda path: path.write_text("hello"), "spec.not_a_map"),
    ("tab.yaml", lambda path: path.write_text("name: x\n\tcommand: y\n"), "file.not_yaml"),
    ("two.yaml", lambda path: path.write_text("a: 1\n---\nb: 2\n"), "file.not_yaml"),
    ("object.yaml", lambda path: path.write_text("name: !!python/object:os.system x\n"), "file.not_yaml"),
    ("number.yaml", lambda path: path.write_text("n_min: " + "9" * 5000 + "\n"), "file.not_yaml"),
    ("keys.yaml", lambda path: path.write_text("1: 2\n[1]: 3\n"), ""),
    ("deep.yaml", lambda path: path.write_text("[" * 5000 + "]" * 5000), "file.too_deep"),
    ("self.yaml", lambda path: path.write_text("name: &a [*a]\n"), "file.cyclic"),
    (
        "bomb.yaml",
        lambda path: path.write_text(
            "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
        ),
        "file.too_many_values",
    ),
    ("broken.toml", lambda path: path.write_text("name = \n"), "file.not_toml"),
]


@pytest.mark.parametrize(("name", "make", "error"), FILES, ids=[file[0] for file in FILES])
async def test_a_bad_file(tmp_path: Path, name: str, make: Callable[[Path], object], error: str) -> None:
    path = tmp_path / name
    make(path)
    line = await refused(tmp_path, "submit", str(path), code=2)
    assert line.startswith(f"{path}: "), line
    assert f" [{error}" in line
    # The same for a file with settings of a cluster, as far as a file of that kind can be wrong in this way.
    if not name.startswith("empty"):
        line = await refused(tmp_path, "up", "--config", str(path), code=2)
        assert line.startswith(f"{path}: "), line


async def test_a_file_without_an_end(tmp_path: Path) -> None:
    assert "[file.too_large]" in await refused(tmp_path, "submit", "/dev/zero", code=2)
    assert "[file.not_text]" in await refused(tmp_path, "submit", "-", stdin=b"name: \xff\xfe", code=2)


async def test_an_app_that_is_not_there(cluster: Up) -> None:
    for command in (["describe"], ["logs"], ["logs", "-f"], ["cancel"], ["update", "--weight", "2"]):
        line = await refused(cluster.home, *command, "witnes", code=1)
        assert line.endswith("did you mean witness? [app.not_found]")
        assert "[app.not_found]" in await refused(cluster.home, *command, "zzz", code=1)


async def test_logs_of_an_app_that_has_not_started(cluster: Up, tmp_path: Path) -> None:
    # The witness has half a core of one node.
    await done(cluster.home, "submit", write_spec(tmp_path, talker("patient", demand={"cpu": "1"}, n_min=1)))
    await done(cluster.home, "submit", write_spec(tmp_path, talker("more-patient", demand={"cpu": "1"}, n_min=1)))
    async with cluster.client() as client:
        await until(client, lambda s: bool(named(s, "more-patient").waiting), "it waits")
    line = await refused(cluster.home, "logs", "more-patient", code=1)
    assert line.endswith(" [app.not_started]")
    for name in ("patient", "more-patient"):
        await done(cluster.home, "cancel", name, "--wait")


@pytest.mark.docker
async def test_an_image_that_does_not_exist(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    options = LocalOptions(data=tmp_path, cluster="images", runtime="docker", docker_url=docker_host, ports=own_ports())
    local = LocalCluster(options)
    names = ("good", "missing", "wrong")
    try:
        async with local:
            to = ["--url", local.server.url, "--cluster", "images"]
            await done(tmp_path, "submit", write_spec(tmp_path, trainer("good", 40, n_max=1)), *to)
            missing = {**talker("missing"), "image": "dorm/no-such-image:1"}
            wrong = {**talker("wrong"), "image": IMAGE, "command": ["pyhton3", "x.py"]}
            for document in (missing, wrong):
                await done(tmp_path, "submit", write_spec(tmp_path, document), *to)
            state = await until(local.client, lambda s: all(named_or_none(s, name) for name in names), "all end")
    finally:
        await local.remove_containers()
    assert [named(state, name).ended for name in names] == ["completed", "failed", "failed"]
    assert "no-such-image" in named(state, "missing").end_reason
    assert "pyhton3" in named(state, "wrong").end_reason
