"""Who may do what over HTTP on a cluster that knows its users: every route, by every role."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import subprocess
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest

from dorm.api.errors import CannotListen
from dorm.api.identity import ACCESS, SESSION_S, Seal, digest_of, new_secret
from dorm.api.options import Options
from dorm.api.resources.table import ROUTES
from dorm.api.serving import serving
from events import kinds as k
from tests.api.served import JSON, Api, connected, led, say, served
from tests.core.records import document
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

    from events.nats.connection import Connection
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

ROLES: dict[str, k.Role] = {"ann": "user", "mallory": "user", "rea": "reader", "op": "operator", "root": "admin"}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def closed(connection: Connection) -> dict[str, str]:
    """Make the cluster know its users; return the secret of each."""
    log, cluster = connection.log, connection.cluster
    await say(log, cluster, k.TrustEnabled(nodes=["a"]), "root")
    secrets = {}
    for name, role in ROLES.items():
        if name != "root":
            await say(log, cluster, k.UserAdded(name=name, role=role), "root")
        secrets[name] = new_secret()
        await say(log, cluster, k.TokenAdded(token=f"{name}-t", user=name, digest=digest_of(secrets[name])), "root")
    return secrets


async def status(api: Api, method: str, path: str, headers: dict[str, str], body: bytes = b"{}") -> int:
    given: dict[str, Any] = {"data": body, "headers": {**JSON, **headers}} if method != "GET" else {"headers": headers}
    async with api.session.request(method, path, **given) as answer:
        return answer.status


async def test_every_route_by_every_role(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"):
        secrets = await closed(connection)
        end = await connection.log.end()
        async with served(connection) as api:
            await api.reach(end)
            anns = await api.send("POST", "/v1/apps", document("mine"), headers=bearer(secrets["ann"]))
            assert anns["user"] == "ann"
            assert anns["idempotency_key"].startswith("ann//")
            await api.reach(int(anns["position"]))
            tried = await _walk(api, secrets, anns["id"])
            assert tried == len(ROUTES) * (len(ROLES) + 1)
            await _owners(api, connection, secrets, anns)
            await _says_nothing_of_others(api, secrets)


async def _walk(api: Api, secrets: dict[str, str], app: str) -> int:
    """Whether a route opens at all: 401 without proof, 403 for the wrong role, and neither for the right one."""
    tried = 0
    for route in ROUTES:
        access = ACCESS.get(route.operation, "any")
        path = (
            route.path.replace("{app}", app)
            .replace("{node}", "a")
            .replace("{position}", "1")
            .replace("{sweep}", "lr")
            .replace("{stream}", "s")
        )
        path += "?tail=1" if route.operation == "app_logs" else ""
        assert await status(api, route.method, path, {}) == 401 or access == "open", route.operation
        tried += 1
        for who, role in ROLES.items():
            allowed = {
                "open": True,
                "any": True,
                "write": role != "reader",
            }[access]
            tried += 1
            if not allowed:
                assert await status(api, route.method, path, bearer(secrets[who])) == 403, (route.operation, who)
            elif access == "any" and who in ("ann", "mallory"):
                found = await status(api, route.method, path, bearer(secrets[who]))
                assert found not in (401, 403), (route.operation, who)
    return tried


async def _owners(api: Api, connection: Connection, secrets: dict[str, str], anns: dict[str, Any]) -> None:
    path = f"/v1/apps/{anns['id']}"
    others = await api.get("/v1/usage?user=ann", 403, bearer(secrets["mallory"]))
    assert others["code"] == "identity.role.too_low"
    assert (await api.get("/v1/usage", headers=bearer(secrets["mallory"])))["rows"] == []
    before = await connection.log.end()
    for method, there, body, code, number in (
        # Whether there is such an app is nothing that another tenant may know.
        ("PATCH", path, {"weight": 9.0}, "app.not_found", 404),
        ("POST", f"{path}/cancel", {}, "app.not_found", 404),
        ("PATCH", f"{path}/spec", {"weight": 9.0}, "app.not_found", 404),
        ("PUT", f"{path}/spec", document("mine"), "app.not_found", 404),
        ("POST", f"{path}/spec/try", {"patch": {"weight": 9.0}}, "app.not_found", 404),
        ("POST", f"{path}/restart", {}, "app.not_found", 404),
        ("POST", "/v1/sweeps/lr/cancel", {}, "sweep.not_found", 404),
        ("POST", "/v1/nodes/a/drain", {}, "identity.not_operator", 403),
        ("PUT", "/v1/policy", {"idle_s": 61}, "identity.not_operator", 403),
        ("POST", "/v1/apps", {**document("theirs"), "user": "ann"}, "submission.user.not_own", 403),
    ):
        refused = await api.send(method, there, body, number, bearer(secrets["mallory"]))
        assert refused["code"] == code
    forged = await api.get("/v1/apps", 403, {**bearer(secrets["mallory"]), "Dorm-User": "ann"})
    assert forged["code"] == "api.user.not_own"
    assert await connection.log.end() == before, "nothing of it is on the log"
    taken = await api.send(
        "POST",
        "/v1/apps",
        document("mine"),
        headers={**bearer(secrets["mallory"]), "Idempotency-Key": anns["idempotency_key"]},
    )
    assert taken["user"] == "mallory"
    assert taken["id"] != anns["id"]
    assert (await api.get("/v1/apps/mine", headers=bearer(secrets["mallory"])))["id"] == taken["id"]
    changed = await api.send("PATCH", path, {"weight": 2.0}, headers=bearer(secrets["op"]))
    assert changed["weight"] == 2.0
    await _edits_and_sweeps(api, secrets, path)
    assert (await api.send("POST", f"{path}/cancel", {}, headers=bearer(secrets["ann"])))["id"] == anns["id"]


async def _edits_and_sweeps(api: Api, secrets: dict[str, str], path: str) -> None:
    """A plain user edits an app as the own view shows it, and has sweeps that others cannot see."""
    ann, mallory = bearer(secrets["ann"]), bearer(secrets["mallory"])
    found = await api.get(f"{path}/spec", headers=ann)
    assert found["spec"]["weight"] == 2.0
    tag = {"If-Match": f'"{found["tag"]}"'}
    edited = await api.send("PATCH", f"{path}/spec", {"weight": 3.0}, headers={**ann, **tag})
    assert edited["revision"] == 2
    assert (await api.send("PATCH", f"{path}/spec", {"weight": 4.0}, 412, {**ann, **tag}))["code"] == "edit.stale"
    assert (await api.get(f"{path}/spec", 404, mallory))["code"] == "app.not_found"
    assert (await api.get("/v1/history?user=ann", 403, mallory))["code"] == "identity.role.too_low"
    assert [one["name"] for one in (await api.get("/v1/history?state=live", headers=mallory))["items"]] == ["mine"]
    made = await api.send("POST", "/v1/sweeps", {**document("lr"), "array": 2}, headers=ann)
    assert (made["new"], made["before"]) == (2, 0)
    for who, names in ((ann, ["lr"]), (mallory, []), (bearer(secrets["rea"]), ["lr"])):
        listed = await api.get(f"/v1/sweeps?min_seq={made['position']}", headers=who)
        assert [one["name"] for one in listed["items"]] == names
    assert (await api.send("POST", "/v1/sweeps/lr/cancel", {}, 403, bearer(secrets["rea"])))["code"]
    assert (await api.send("POST", "/v1/sweeps/lr/cancel", {}, 404, mallory))["code"] == "sweep.not_found"
    assert (await api.send("POST", "/v1/sweeps/ann%2F%2Flr/cancel", {}, headers=bearer(secrets["op"])))["apps"] == 2


async def _says_nothing_of_others(api: Api, secrets: dict[str, str]) -> None:
    """Every answer that mallory may read, streams included, against a reader's as the control."""
    taken = await api.send(
        "POST", "/v1/apps", document("canary", env={"CANARY": "canary"}), headers=bearer(secrets["ann"])
    )
    own = await api.send("POST", "/v1/apps", document("plain"), headers=bearer(secrets["mallory"]))
    await api.reach(max(int(taken["position"]), int(own["position"])))
    shown = set()
    for route in ROUTES:
        if route.method != "GET":
            continue
        for app in (taken["id"], "plain"):
            path = route.path.replace("{app}", app).replace("{node}", "a").replace("{position}", own["position"])
            path = path.replace("{sweep}", "lr")
            for accept in ("application/json", "text/event-stream") if route.streams else ("application/json",):
                asked = {"Accept": accept, "Last-Event-ID": "0"}
                wait_s = 0.4 if route.streams else 20.0
                said = await _text(api, path, {**bearer(secrets["mallory"]), **asked}, wait_s)
                assert "canary" not in said, route.operation
                if "canary" in await _text(api, path, {**bearer(secrets["rea"]), **asked}, wait_s):
                    shown.add(route.operation)
    assert {"list_apps", "get_app", "list_events"} <= shown, shown


async def _text(api: Api, path: str, headers: dict[str, str], wait_s: float) -> str:
    """Return an answer, of a stream what it holds in a moment; "" for a refusal."""
    found = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s), api.session.get(path, headers=headers) as answer:
            if answer.status >= 400:
                return ""
            async for piece in answer.content.iter_any():
                found += piece
    return found.decode(errors="replace").lower()


async def test_proofs_of_a_user(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        secrets = await closed(connection)
        log, cluster = connection.log, connection.cluster
        old = new_secret()
        ended = k.TokenAdded(token="old", user="ann", digest=digest_of(old), expires_at=time.time_ns() - 1)
        end = await say(log, cluster, ended, "root")
        async with served(connection) as api:
            await api.reach(end)
            basic = base64.b64encode(f"ann:{secrets['ann']}".encode()).decode()
            wrong = base64.b64encode(f"op:{secrets['ann']}".encode()).decode()
            for headers, expected in (
                (bearer(secrets["ann"]), 200),
                ({"Authorization": f"Basic {basic}"}, 200),
                ({"Authorization": f"Basic {wrong}"}, 401),
                ({}, 401),
                ({"Dorm-User": "root"}, 401),
                (bearer(old), 401),
                (bearer(new_secret()), 401),
                (bearer(digest_of(secrets["ann"])), 401),
                ({"Authorization": "Bearer"}, 400),
                ({"Authorization": "Basic !"}, 400),
                ({"Authorization": "Digest x"}, 400),
            ):
                assert await status(api, "GET", "/v1/apps", headers) == expected, headers
            async with api.session.get("/", allow_redirects=False) as page:
                assert (page.status, page.headers["Location"]) == (303, "sign-in")
            for mode, schemes in (("navigate", ["Basic", "Bearer"]), ("cors", ["Bearer"])):
                # A browser would open a dialog, and let the page's own request wait for it.
                async with api.session.get("/v1/apps", headers={"Sec-Fetch-Mode": mode}) as answer:
                    assert [one.split()[0] for one in answer.headers.getall("WWW-Authenticate")] == schemes
            assert await status(api, "GET", "/v1/health", {}) == 200
            reading = {**bearer(secrets["rea"]), "Accept": "text/event-stream"}
            async with api.session.get("/v1/events/stream", headers=reading) as stream:
                assert (stream.status, await stream.content.readline()) == (200, b"retry: 1000\n")
                await say(log, cluster, k.UserRemoved(name="rea"), "root")
                async with asyncio.timeout(20.0):
                    with contextlib.suppress(aiohttp.ClientError):
                        while await stream.content.readany():
                            pass
            await api.reach(await say(log, cluster, k.TokenRemoved(token="ann-t"), "root"))
            assert await status(api, "GET", "/v1/apps", bearer(secrets["ann"])) == 401
            await api.reach(await say(log, cluster, k.UserRemoved(name="op"), "root"))
            assert await status(api, "GET", "/v1/apps", bearer(secrets["op"])) == 401


async def test_a_stream_ends_with_what_proves_its_user(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await closed(connection)
        secret = new_secret()
        soon = k.TokenAdded(token="soon", user="ann", digest=digest_of(secret), expires_at=time.time_ns() + 4 * 10**9)
        end = await say(connection.log, connection.cluster, soon, "root")
        async with served(connection) as api:
            await api.reach(end)
            async with api.session.post("/v1/streams", json={}, headers={**JSON, **bearer(secret)}) as stream:
                assert stream.status == 200
                async with asyncio.timeout(20.0):
                    with contextlib.suppress(aiohttp.ClientError):
                        while await stream.content.readany():
                            pass
            assert await status(api, "GET", "/v1/session", bearer(secret)) == 401


async def test_a_browser_signs_in(nats_server: NatsServer) -> None:
    """A code is good once; the cookie is good until the session or its token ends, and only from the dashboard's own page."""
    async with connected(nats_server.url) as connection, led(connection, "a"):
        secrets = await closed(connection)
        async with served(connection) as api:
            await api.reach(await connection.log.end())
            made = await api.send("POST", "/v1/session/codes", None, 200, bearer(secrets["ann"]))
            cookie = await _signed_in(api, {"code": made["code"]})
            again = await api.send("POST", "/v1/session", {"code": made["code"]}, 401)
            assert again["code"] == "api.code.unknown"
            assert (await api.send("POST", "/v1/session", {"token": new_secret()}, 401))["code"] == "api.token.unknown"
            assert (await api.send("POST", "/v1/session", {"token": secrets["op"], "code": "x"}, 401))[
                "code"
            ] == "api.code.unknown"
            assert (await api.send("POST", "/v1/session/codes", None, 401))["code"] == "api.unauthorized"
            await _signed_in(api, {"token": secrets["op"]})
            here = str(api.session._base_url).rstrip("/")
            assert await status(api, "GET", "/", cookie) == 200
            assert await status(api, "GET", "/v1/apps", cookie) == 200
            assert await status(api, "GET", "/v1/state", cookie) == 200, "as her tenant may see it"
            body = msgspec.json.encode(document("mine"))
            for headers, expected in (
                ({"Origin": here}, 202),
                ({}, 403),
                ({"Origin": "http://127.0.0.1:9"}, 403),
                ({"Origin": here, "Sec-Fetch-Site": "same-site"}, 403),
            ):
                assert await status(api, "POST", "/v1/apps", {**cookie, **headers}, body) == expected, headers
            await _knows_who(api, secrets, cookie)
            await api.reach(await say(connection.log, connection.cluster, k.TokenRemoved(token="ann-t"), "root"))
            assert await status(api, "GET", "/v1/apps", cookie) == 401


async def _knows_who(api: Api, secrets: dict[str, str], cookie: dict[str, str]) -> None:
    """A session has an end of its own and holds no secret of its token; signing out ends it, with its streams."""
    assert secrets["ann"] not in cookie["Cookie"]
    session = await api.get("/v1/session", headers=cookie)
    assert (session["user"], session["role"], session["tenant"]) == ("ann", "user", "ann")
    left_s = datetime.fromisoformat(session["expires_at"][:19] + "Z").timestamp() - time.time()
    assert SESSION_S - 600 < left_s <= SESSION_S
    assert (await api.get("/v1/session", headers=bearer(secrets["rea"])))["expires_at"] is None
    other = await _signed_in(api, {"token": secrets["ann"]})
    start, _, end = cookie["Cookie"].rpartition(".")
    key = cookie["Cookie"].partition("=")[0]
    forged = (f"{start}.{end[:-1]}{'0' if end[-1] != '0' else '1'}", f"{key}={secrets['ann']}", f"{key}=é")
    for wrong in forged:
        assert (await api.get("/v1/apps", 401, {"Cookie": wrong}))["code"] == "api.session.over"
    here = str(api.session._base_url).rstrip("/")
    async with api.session.get("/v1/events/stream", headers={**other, "Accept": "text/event-stream"}) as stream:
        await stream.content.readline()
        assert await status(api, "DELETE", "/v1/session", {**other, "Origin": "http://127.0.0.1:9"}) == 403
        assert await status(api, "DELETE", "/v1/session", {**other, "Origin": here}) == 204
        async with asyncio.timeout(20.0):
            with contextlib.suppress(aiohttp.ClientError):
                while await stream.content.readany():
                    pass
    assert await status(api, "GET", "/v1/apps", other) == 401
    assert await status(api, "GET", "/v1/apps", cookie) == 200


def test_a_seal_is_that_of_its_key() -> None:
    cookie = Seal(b"one").make("d" * 64, 5)
    read = Seal(b"one").read(cookie)
    assert read is not None
    assert read[:2] == ("d" * 64, 5)
    for other in (cookie.replace(".5.", ".6."), cookie[:-1], "", ".", "a.b.c.d"):
        assert Seal(b"one").read(other) is None
    assert Seal(b"two").read(cookie) is None


async def _signed_in(api: Api, proof: dict[str, str]) -> dict[str, str]:
    """Return the header that a browser sends from then on."""
    async with api.session.post("/v1/session", json=proof) as answer:
        assert answer.status == 204
        cookie = answer.headers["Set-Cookie"]
    api.session.cookie_jar.clear()  # Otherwise all later requests would carry it.
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    return {"Cookie": cookie.partition(";")[0]}


def _certificates(folder: Path) -> None:
    """An authority, the server's certificate and those of two users, one of whom the cluster does not know."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=30)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "ann", "stranger"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)


async def test_a_certificate_proves_a_user(nats_server: NatsServer, tmp_path: Path) -> None:
    await asyncio.to_thread(_certificates, tmp_path)
    async with connected(nats_server.url) as connection:
        secrets = await closed(connection)
        certificate, key, clients = (tmp_path / name for name in ("server.pem", "server.key", "ca.pem"))
        options = Options(port=0, certificate=certificate, key=key, clients=clients)
        async with serving(connection, options) as server:
            following = asyncio.create_task(server.run())
            try:
                await server.services.follower.reach(await connection.log.end(), 20.0)
                for name, headers, expected in (
                    ("ann", {}, 200),
                    ("stranger", {}, 401),
                    ("", {}, 401),
                    ("", bearer(secrets["ann"]), 200),
                    ("stranger", bearer(secrets["ann"]), 200),
                ):
                    encryption = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
                    if name:
                        encryption.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}.key")
                    async with (
                        aiohttp.ClientSession() as session,
                        session.get(f"{server.url}/v1/apps", headers=headers, ssl=encryption) as answer,
                    ):
                        assert answer.status == expected, (name, headers)
            finally:
                following.cancel()
                await asyncio.wait({following})
        with raises(CannotListen, "api.certificate.unusable", "none.pem"):
            async with serving(connection, Options(port=0, certificate=tmp_path / "none.pem")):
                pass


def test_every_operation_has_its_access() -> None:
    """One that was renamed would fall back to `read`, which is safe and wrong."""
    assert set(ACCESS) - {"describe"} <= {route.operation for route in ROUTES}
    changing = {route.operation for route in ROUTES if route.method != "GET"}
    assert {name for name in changing if ACCESS.get(name, "read") != "write"} == {
        "change_streams",
        "fork_log",
        "open_streams",
        "plan_next",
        "session_code",
        "sign_in",
        "sign_out",
        "try_edit",
        "try_policy",
    }
