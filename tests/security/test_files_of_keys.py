"""Keys, certificates, tokens and contexts on disk: private, whole, and never printed."""

from __future__ import annotations

import json
import os
import ssl
import stat
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.local.founding import make_keys
from dorm.security.certificates import fingerprint
from dorm.security.contexts import Context, Contexts, read_contexts, write_contexts
from dorm.security.folder import Joining, KeyFolder, save_credentials
from dorm.security.joining import Introduction, read_token
from dorm.security.private_files import SecurityError, write_private
from dorm.webhooks.deliverer import is_place_of, place_of
from dorm.webhooks.endpoints import Endpoint
from dorm.webhooks.webhook_keys import Keys
from events.nats.access import Credentials, CredentialsError, new_seed, public_key, read_credentials
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_790_000_000_000_000_000
URL = "tls://10.0.0.1:4222"


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    found = KeyFolder(tmp_path / "lab" / "security")
    make_keys(found, "lab", URL, "root", ("10.0.0.1", "nats.example"), NOW)
    return found


def test_only_the_owner_may_read_a_key(keys: KeyFolder) -> None:
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in keys.path.iterdir()}
    assert set(modes) == {
        "ca.pem", "ca.key", "server.pem", "server.key", "accounts.conf", "root.json", "root.nk", "master.json", "api.json",
        "seal.nk",
    }  # fmt: skip
    assert set(modes.values()) == {0o600}


def test_no_seed_is_in_the_servers_configuration(keys: KeyFolder) -> None:
    text = keys.accounts.read_text()
    for name in ("root", "master", "api"):
        found = keys.credentials(name)
        assert found.seed.decode() not in text
        assert public_key(found.seed) in text
        assert found.seed.decode() not in repr(found)


def test_existing_files_are_kept_and_the_servers_certificate_is_renewed(keys: KeyFolder) -> None:
    before = {file.name: file.read_bytes() for file in keys.path.iterdir()}
    make_keys(keys, "lab", URL, "root", ("10.0.0.1", "nats.example"), NOW + 10**15)
    after = {file.name: file.read_bytes() for file in keys.path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"server.pem", "server.key"}


def test_the_authority_vouches_for_the_server_by_each_of_its_names(keys: KeyFolder) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.path / "server.pem", keys.path / "server.key")
    for host, good in (("10.0.0.1", True), ("nats.example", True), ("10.0.0.2", False), ("evil.example", False)):
        trusting = keys.credentials("root").tls()
        assert trusting is not None
        assert _shakes_hands(context, trusting, host) is good
    assert len(fingerprint(keys.ca)) == 64


def _shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> bool:
    """Return whether a client that wants this host accepts the server, both in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    done = [False, False]
    for _ in range(10):
        for index, side in enumerate(sides):
            try:
                side.do_handshake()
                done[index] = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError:
                return False
    return all(done)


def test_credentials_that_others_may_read_are_refused(tmp_path: Path) -> None:
    file, seed = tmp_path / "alice.json", new_seed()
    save_credentials(file, Credentials("lab", URL, "alice", "user", seed))
    assert read_credentials(file).seed == seed
    file.chmod(0o640)
    with raises(CredentialsError, "credentials.open_to_others") as refused:
        read_credentials(file)
    assert seed.decode() not in str(refused.value)


def test_a_key_may_be_in_a_file_of_its_own_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, file = new_seed(), tmp_path / "alice.json"
    mine = Credentials("lab", URL, "alice", "user", seed)
    write_private(tmp_path / "alice.nk", seed + b"\n")
    save_credentials(file, mine, "file:alice.nk")
    assert read_credentials(file) == mine
    save_credentials(file, mine, "env:ALICES_KEY")
    with raises(CredentialsError, "credentials.no_variable"):
        read_credentials(file)
    monkeypatch.setenv("ALICES_KEY", seed.decode())
    assert read_credentials(file) == mine


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b'{"cluster": 1}', b"[" * 5000, b'{"cluster":"a","url":"b","name":"c","role":"d"}']
)
def test_invalid_credentials_files_are_refused(tmp_path: Path, content: bytes) -> None:
    write_private(tmp_path / "file.json", content)
    with raises(CredentialsError, "credentials.unusable"):
        read_credentials(tmp_path / "file.json")


def test_a_seed_of_another_kind_is_refused_and_not_printed() -> None:
    with raises(CredentialsError, "credentials.unusable") as refused:
        Credentials("lab", URL, "alice", "user", b"SCAALQ3LHDFLHBW7PVHC7KMKDBHI5FXRYJHLCZ5LAU4WMTQWIZB3DKOJDM")
    assert "SCAALQ" not in str(refused.value)
    with raises(CredentialsError, "credentials.unusable"):
        Credentials("lab", URL, "al.ice", "user", new_seed())


def test_a_token_is_read_as_it_was_made_until_it_expires() -> None:
    made = Introduction("lab", URL, "n1", new_seed().decode(), NOW + 10, "")
    assert read_token(f"  {made.token()}\n", NOW) == made
    assert made.seed not in repr(made)
    with raises(SecurityError, "token.expired"):
        read_token(made.token(), NOW + 11)


@pytest.mark.parametrize("text", ["", "dorm1.", "dorm1.AAAA", "dorm1.\xe9", "x" * 100_000, "dorm1." + "A" * 9000])
def test_malformed_tokens_are_refused(text: str) -> None:
    with raises(SecurityError, "token.malformed"):
        read_token(text, NOW)


def test_only_tokens_that_are_still_good_are_in_the_configuration(keys: KeyFolder) -> None:
    seed = new_seed()
    keys.set_joining("n1", Joining(public_key(seed), NOW + 10), NOW)
    keys.write_accounts("lab", (), NOW)
    assert public_key(seed) in keys.accounts.read_text()
    keys.write_accounts("lab", (), NOW + 11)
    assert public_key(seed) not in keys.accounts.read_text()


def test_a_reload_only_reaches_nats_servers(keys: KeyFolder) -> None:
    """A process id may belong to another program meanwhile; SIGHUP would end it."""
    (keys.path.parent / "nats.pid").write_text(str(os.getpid()))
    assert not keys.reload()
    (keys.path.parent / "nats.pid").write_text("nonsense")
    assert not keys.reload()


def test_contexts_are_kept_in_one_private_file(tmp_path: Path) -> None:
    file = tmp_path / "dorm" / "contexts.json"
    assert read_contexts(file) == Contexts()
    lab = Context(URL, "lab", "/home/alice/alice.json")
    write_contexts(file, Contexts().having("lab", lab).using("lab"))
    assert read_contexts(file).find("lab") == lab
    assert json.loads(file.read_text())["current"] == "lab"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_contexts(file).without("lab") == Contexts()
    with raises(SecurityError, "context.not_found", "lab"):
        read_contexts(file).find("prod")
    with raises(SecurityError, "context.name.malformed"):
        Contexts().having("no/slash", lab)
    file.write_text("nonsense")
    with raises(SecurityError, "context.unreadable"):
        read_contexts(file)


def test_only_admins_find_the_place_of_a_webhook() -> None:
    """A server lets every reader of the log take records from, or remove, a consumer whose name is known."""
    endpoint = Endpoint("pager", "https://example.com", ("app.ended",), "", "", 0, 60.0, 12, "olga")
    places = {place_of(endpoint, Keys(bytes([number]) * 32, "lab").hidden("pager")) for number in range(3)}
    assert len({*places, place_of(endpoint)}) == 4
    for place in (*places, place_of(endpoint)):
        assert is_place_of(place, endpoint)
        assert place.endswith("-12")
        assert not is_place_of(place, msgspec.structs.replace(endpoint, added=2))
        assert not is_place_of(place, msgspec.structs.replace(endpoint, name="page"))
    assert not is_place_of(place_of(msgspec.structs.replace(endpoint, name="pager-x")), endpoint)
