"""Which cluster a command goes to, and as whom: flags, environment, contexts, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.security.folder import save_credentials
from events.nats.access import Credentials, new_seed
from tests.e2e.commands import done, dorm, refused

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO, THREE = (f"nats://127.0.0.{number}:1" for number in (1, 2, 3))
"""Nothing listens there: a command's error says where it went."""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    file = tmp_path / "alice.json"
    save_credentials(file, Credentials("lab", TWO, "alice", "user", new_seed()))
    return str(file)


async def test_flags_override_the_environment_which_overrides_contexts(tmp_path: Path, mine: str) -> None:
    home = tmp_path / "home"

    async def goes_to(*arguments: str, **env: str) -> str:
        reason = await refused(home, "ps", *arguments, code=1, env=env)
        return next(url for url in (ONE, TWO, THREE) if f"{url} " in reason)

    await done(home, "context", "add", "one", "--server", ONE, "--use")
    await done(home, "context", "add", "two", "--credentials", mine)
    assert await goes_to() == ONE
    assert await goes_to("--context", "two") == TWO
    assert await goes_to(DORM_CONTEXT="two") == TWO
    assert await goes_to("--context", "one", DORM_CONTEXT="two") == ONE
    assert await goes_to("--credentials", mine) == TWO
    assert await goes_to(DORM_CREDENTIALS=mine) == TWO
    assert await goes_to("--url", THREE) == THREE
    assert await goes_to("--url", THREE, "--context", "two") == THREE
    await done(home, "context", "use", "two")
    assert await goes_to() == TWO
    assert "identity: user alice" in await done(home, "context", "show")
    assert "*  two" in (await done(home, "context", "list")).replace("\t", " ")
    await done(home, "context", "remove", "two")
    assert "context.none" in await refused(home, "context", "show", code=1)
    assert "context.not_found" in await refused(home, "ps", "--context", "two", code=1)


async def test_a_key_is_printed_by_nothing(tmp_path: Path, mine: str) -> None:
    home = tmp_path / "home"
    seed = (tmp_path / "alice.json").read_text().split('"seed": "')[1][:58]
    printed = await done(home, "context", "add", "two", "--credentials", mine, "--use")
    for arguments in (("context", "list", "-o", "json"), ("context", "show"), ("context", "list", "-o", "wide")):
        printed += await done(home, *arguments)
    printed += await refused(home, "ps", code=1) + (home / "contexts.json").read_text()
    assert seed not in printed


async def test_a_password_in_a_url_is_warned_of_and_never_printed(tmp_path: Path) -> None:
    for url in ("nats://me:geheim@127.0.0.1:1", "nats://geheim@127.0.0.1:1", "nats://me:ge:heim@127.0.0.1:x"):
        code, out, err = await dorm(tmp_path, "ps", "--url", url)
        assert code == 1
        assert err.startswith("warning: the URL holds a password")
        assert "heim" not in out + err
    assert "context.password" in await refused(
        tmp_path, "context", "add", "x", "--server", "nats://me:geheim@127.0.0.1:1", code=2
    )


async def test_credentials_of_another_cluster_are_refused_before_anything_is_sent(tmp_path: Path, mine: str) -> None:
    reason = await refused(tmp_path, "ps", "--credentials", mine, "--cluster", "prod", code=1)
    assert "credentials.other_cluster" in reason


async def test_a_user_key_is_never_sent(tmp_path: Path) -> None:
    public = (await done(tmp_path, "user", "key", str(tmp_path / "alice.nk"))).strip()
    assert public.startswith("U")
    assert len(public) == 56
    assert (tmp_path / "alice.nk").stat().st_mode & 0o077 == 0
    assert "credentials.file_exists" in await refused(tmp_path, "user", "key", str(tmp_path / "alice.nk"), code=1)


async def test_identities_are_for_admins_with_credentials(tmp_path: Path) -> None:
    for command in (
        ("user", "add", "bob"),
        ("user", "remove", "bob"),
        ("node", "intro", "n1"),
        ("node", "remove", "n1"),
    ):
        assert "credentials.none" in await refused(tmp_path, *command, "--url", ONE, code=1)
    assert "user.malformed" in await refused(tmp_path, "user", "add", "b.b", code=2)
    assert "user.malformed" in await refused(tmp_path, "user", "add", "bob", "--role", "king", code=2)
    assert "node.malformed" in await refused(tmp_path, "node", "intro", "n 1", code=2)
