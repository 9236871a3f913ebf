"""The admin's own program that brings changed accounts to the servers, and the keys that only a restore has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.deploy.keys import prepare, write_apply
from dorm.security.folder import Key, KeyFolder
from dorm.security.private_files import SecurityError
from events.nats.access import RESTORER
from tests.deploy.made import deployment
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000_000_000_000


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    made = KeyFolder(tmp_path / "security")
    prepare(deployment(), made, "root", NOW)
    return made


def test_it_runs_next_to_the_accounts(keys: KeyFolder) -> None:
    assert keys.reload() is False
    assert write_apply(deployment(), keys)
    assert "scp -q accounts.conf root@10.0.0.2:/etc/dorm/keys/accounts.conf" in keys.apply.read_text()
    keys.apply.write_text("#!/bin/sh\ncp accounts.conf copied\n")
    assert not write_apply(deployment(), keys)
    assert keys.reload() is True
    assert (keys.path / "copied").read_bytes() == keys.accounts.read_bytes()


@pytest.mark.parametrize("script", ["#!/bin/sh\necho 'no route to host' >&2; exit 1\n", "#!/bin/absent\n"])
def test_its_failure_is_reported_and_loses_nothing(keys: KeyFolder, script: str) -> None:
    keys.apply.write_text(script)
    keys.apply.chmod(0o700)
    with raises(SecurityError, "security.apply_failed", "the log has the change"):
        keys.reload()


def test_accounts_list_the_restorer_only_during_a_restore(keys: KeyFolder) -> None:
    admin = Key("root", "admin", "UADMIN")
    assert "restorer" not in keys.accounts.read_text()
    keys.make_credentials("lab", "tls://10.0.0.1:4222", RESTORER, RESTORER)
    keys.write_accounts("lab", [admin], NOW)
    (line,) = [line for line in keys.accounts.read_text().split("{ nkey") if "# restorer" in line]
    assert msgspec.json.encode("dorm.lab.>").decode() in line
    keys.file_of(RESTORER).unlink()
    keys.write_accounts("lab", [admin], NOW)
    assert "restorer" not in keys.accounts.read_text()
