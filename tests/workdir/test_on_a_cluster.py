"""`workdir: .` on a real cluster that knows its users: shipped by one, out of reach of another, gone for a third."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from dorm.client.opening import open_client
from dorm.workdir import ship, ship_folder
from dorm.workdir.errors import OverQuota
from events.log.records import LogError, LogRefused
from events.log.stores import EVERY_TENANT
from events.nats.access import read_credentials
from events.spec import shipped
from events.workdir import Limits
from tests.e2e.commands import done, dorm, refused
from tests.e2e.local_up import Up, leaving_nothing, up
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

TRAIN = """\
import os
from pkg import model
Path = __import__("pathlib").Path
print("trains", model.NAME, sorted(os.listdir(".")), flush=True)
Path("weights").write_text("mine")
"""


class Shared(Up):
    """A cluster with two plain users and an operator."""

    people: Path

    def as_(self, name: str) -> tuple[str, ...]:
        return ("--credentials", str(self.people / f"{name}.json"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    people = tmp_path_factory.mktemp("people")
    async with (
        leaving_nothing(tmp_path_factory.mktemp("shipping")) as folder,
        up(folder, "--trust-apps", known=True) as one,
    ):
        shared = Shared(folder, one.process, one.log)
        shared.people = people
        for name, role in (
            ("alice", "user"),
            ("mallory", "user"),
            ("olga", "operator"),
            ("rita", "reader"),
            ("backup", "reader"),
        ):
            await done(shared.home, "user", "add", name, "--role", role, "--to", str(people / f"{name}.json"))
        yield shared


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "model.py").write_text("NAME = 'linear'\n")
    (root / "train.py").write_text(TRAIN)
    (root / "secret.log").write_text("not for the cluster")
    (root / ".gitignore").write_text("*.log\n__pycache__\n")
    spec = {"name": "shipped", "command": ["python3", "train.py"], "demand": {"cpu": "500m"}, "workdir": "."}
    (root / "app.yaml").write_text(json.dumps(spec))
    return root


async def test_a_plain_user_ships_a_folder_and_its_app_starts_in_a_copy(cluster: Shared, project: Path) -> None:
    submit = ("submit", "--wait", str(project / "app.yaml"), *cluster.as_("alice"))
    code, out, err = await dorm(cluster.home, *submit)
    assert code == 0, err
    assert "shipped its folder (4 files, " in err
    assert out.startswith("shipped completed")
    said = await done(cluster.home, "logs", "shipped", *cluster.as_("alice"))
    assert said == "trains linear ['.gitignore', 'app.yaml', 'pkg', 'train.py']\n"
    code, out, err = await dorm(cluster.home, *submit, "--name", "again")
    assert (code, "shipped (" in err) == (0, False)
    found = json.loads(await done(cluster.home, "describe", "shipped", "-o", "json", *cluster.as_("alice")))
    assert found["workdir"]["files"] == 4
    got = project.parent / "got"
    await done(cluster.home, "files", "get", "shipped", str(got), *cluster.as_("alice"))
    assert sorted(path.name for path in got.rglob("*.py")) == ["model.py", "train.py"]
    assert not (project / "weights").exists()


async def test_a_failure_names_the_missing_file_and_the_rule_that_left_it_out(cluster: Shared, project: Path) -> None:
    (project / "train.py").write_text("open('secret.log')\n")
    code, _, err = await dorm(
        cluster.home, "submit", "--wait", str(project / "app.yaml"), "--name", "misses", *cluster.as_("alice")
    )
    assert code == 1
    assert "misses: left out: .gitignore: 1 entry, 19 B; --show-ignored lists them" in err
    assert "secret.log is in " in err.splitlines()[-1]
    assert ".gitignore:1: *.log" in err.splitlines()[-1]
    run = ("run", "--workdir", str(project), "--cpu", "500m", *cluster.as_("alice"), "--", "python3", "train.py")
    code, _, err = await dorm(cluster.home, *run)
    assert code == 1
    assert ".gitignore:1: *.log" in err.splitlines()[-1]
    code, _, err = await dorm(cluster.home, run[0], "--dry-run", "--show-ignored", *run[1:])
    assert code == 0
    assert "  secret.log (19 B in 1 file): .gitignore:1: *.log" in err.splitlines()


async def test_a_plan_needs_no_shipped_folder(cluster: Shared, project: Path) -> None:
    code, out, err = await dorm(cluster.home, "plan", str(project / "app.yaml"), "-o", "json")
    assert code in (0, 3), err
    assert "shipped submitted" in out


async def test_no_tenant_reaches_another_tenants_files(cluster: Shared, project: Path) -> None:
    who = {name: read_credentials(cluster.people / f"{name}.json") for name in ("alice", "mallory", "olga", "rita")}
    async with (
        await open_client(cluster.url, "local", credentials=who["alice"]) as alice,
        await open_client(cluster.url, "local", credentials=who["mallory"]) as mallory,
        await open_client(cluster.url, "local", credentials=who["olga"]) as olga,
        await open_client(cluster.url, "local", credentials=who["rita"]) as rita,
    ):
        hash = (await ship(alice, project))["hash"]
        store = mallory.log.files
        assert (await alice.log.files.get("alice", hash)) is not None
        for act in (
            store.get("alice", hash), store.put("alice", hash, b"x"), store.listed("alice"),
            store.listed(EVERY_TENANT), store.set_limits(Limits(total=1)), rita.log.files.listed(EVERY_TENANT),
            rita.log.files.put("rita", hash, b"x"),
            *(store.remove(blob) for blob in await alice.log.files.listed("alice")),
            *(alice.log.files.remove(blob) for blob in (await alice.log.files.listed("alice"))[:1]),
        ):  # fmt: skip
            with pytest.raises(LogError) as told:
                await act
            assert isinstance(told.value, LogRefused), told.value
        # The control: what is mallory's own works, and an operator sees and limits everybody's.
        mine = await ship_folder(store, "mallory", project)
        assert {blob.tenant for blob in await store.listed("mallory")} == {"mallory"}
        assert mine.sent == mine.blobs
        assert {"alice", "mallory"} <= {blob.tenant for blob in await olga.log.files.listed()}
        await olga.log.files.set_limits(Limits(count=3))
        try:
            found = await refused(cluster.home, "submit", str(project / "app.yaml"), *cluster.as_("alice"), code=1)
            assert "[workdir.too_many_files]" in found
        finally:
            await olga.log.files.set_limits(Limits())


async def test_a_plain_user_has_a_quota_and_makes_room(cluster: Shared, project: Path) -> None:
    who = {name: read_credentials(cluster.people / f"{name}.json") for name in ("mallory", "olga")}
    (project / "large").write_bytes(os.urandom(200_000))
    async with (
        await open_client(cluster.url, "local", credentials=who["mallory"]) as mallory,
        await open_client(cluster.url, "local", credentials=who["olga"]) as olga,
    ):
        await done(cluster.home, "files", "limits", "--quota-of", "mallory=150KiB", *cluster.as_("olga"))
        with raises(OverQuota, "workdir.over_quota"):
            await ship(mallory, project)
        await mallory.log.files.put("mallory", f"{0:064}", os.urandom(100_000))
        (junk,) = [blob for blob in await mallory.log.files.listed("mallory") if blob.size == 100_000]
        await mallory.log.files.give_up(junk)
        assert await mallory.log.files.get("mallory", junk.name) is None
        assert junk.name in {blob.name for blob in await olga.log.files.listed("mallory")}, "a master removes it"
        said = await done(cluster.home, "files", "limits", "--quota-of", "mallory=", *cluster.as_("olga"))
        assert "user mallory" not in said
        assert (await ship(mallory, project))["files"] == 5
    said = await done(cluster.home, "files", "purge", "--unused-for", "1m", *cluster.as_("mallory"))
    assert said.endswith("removed, 0 B\n"), "all of it was shipped lately"
    assert "[usage" in await refused(
        cluster.home, "files", "purge", "--unused-for", "1m", *cluster.as_("olga"), code=2
    ), "it would be everybody's"


@pytest.mark.soak
async def test_a_backup_holds_the_folders_and_brings_them_to_another_cluster(
    cluster: Shared, project: Path, tmp_path: Path
) -> None:
    async with await open_client(
        cluster.url, "local", credentials=read_credentials(cluster.people / "alice.json")
    ) as alice:
        hash = (await ship(alice, project))["hash"]
    kept = tmp_path / "kept"
    kept.mkdir()
    said = await done(cluster.home, "backup", str(kept), *cluster.as_("backup"))
    assert "of shipped folders, " in said
    found = await refused(cluster.home, "backup", str(tmp_path), *cluster.as_("rita"), code=1)
    assert "[backup.files_refused]" in found
    said = await done(cluster.home, "backup", str(tmp_path), "--without-files", *cluster.as_("rita"))
    assert "shipped" not in said
    (copy,) = kept.glob("local-*.dorm")
    async with leaving_nothing(tmp_path / "other") as folder:
        folder.mkdir()
        async with up(folder, agents=1) as other:
            to = ("--cluster", "drill", "--url", other.url)
            said = await done(other.home, "replay", "import", str(copy), *to)
            assert "of shipped folders are in its store" in said
            async with await open_client(other.url, "drill", user="tester") as tester:
                assert await tester.log.files.get("alice", hash) is not None


@pytest.mark.soak
async def test_the_master_removes_foreign_parts_beyond_the_quota(cluster: Shared) -> None:
    """The servers take it: they know no quota of single subjects."""
    who = {name: read_credentials(cluster.people / f"{name}.json") for name in ("mallory", "olga")}
    async with (
        await open_client(cluster.url, "local", credentials=who["mallory"]) as mallory,
        await open_client(cluster.url, "local", credentials=who["olga"]) as olga,
    ):
        await olga.log.files.set_limits(Limits(quotas={"mallory": 350_000}))
        try:
            for number in range(5):
                await mallory.log.files.put("mallory", f"{number:064}", os.urandom(100_000))
            async with asyncio.timeout(100):
                while sum(blob.takes for blob in await olga.log.files.listed("mallory")) > 350_000:  # noqa: ASYNC110
                    await asyncio.sleep(1)
        finally:
            await olga.log.files.set_limits(Limits())
        left = {blob.name for blob in await mallory.log.files.listed("mallory") if blob.size == 100_000}
        assert f"{0:064}" in left, "the earliest stay"
        assert f"{4:064}" not in left


async def test_a_missing_folder_fails_the_app_with_a_reason(cluster: Shared, project: Path) -> None:
    credentials = read_credentials(cluster.people / "alice.json")
    async with await open_client(cluster.url, "local", credentials=credentials) as alice:
        gone = {"hash": "0" * 63 + "1"}
        spec = {
            "name": "gone",
            "command": ["true"],
            "demand": {"cpu": "500m"},
            "workdir": gone,
            "retries": {"limit": 0},
        }
        app = await alice.submit(spec)
        ended = await alice.wait(app.id)
        assert ended.ended == "failed"
        assert "is no longer in the cluster's store" in ended.end_reason
        with raises(Exception, "spec.workdir.not_shipped"):
            await alice.submit({**spec, "name": "path", "workdir": "."})
        assert shipped(ended.spec) is not None
