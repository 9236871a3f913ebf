"""Settings that can't be used are refused with a line that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.deploy.settings_file import DeploymentError, check
from tests.deploy.made import deployment, document

_MACHINES = {"n1": "10.0.0.1", "n2": "10.0.0.2"}
REFUSED: list[tuple[Any, str, str]] = [
    ([], "not_a_map", "dorm deploy example"),
    ({}, "cluster.missing", "cluster"),
    (document(server=["n1"]), "unknown_field", "did you mean servers?"),
    (document(cluster="a b"), "cluster.malformed", "letters, digits"),
    (document(machines={"n1\nx": "10.0.0.1"}), "machines.malformed", "machines"),
    (document(machines={"n1": "10.0.0.1; rm -rf /"}), "machines.malformed", "machines"),
    (document(machines={}), "machines.out_of_range", "machines"),
    (document(servers=["n1", "n2"]), "servers.count", "1, 3 or 5"),
    (document(servers=["n1", "n2", "n9"]), "servers.unknown_machine", "n9"),
    (document(servers=["n1", "n1", "n2"]), "servers.twice", "twice"),
    (document(masters=[]), "masters.none", "at least one"),
    (document(masters=["other"]), "masters.unknown_machine", "other"),
    (document(api=["other"]), "api.unknown_machine", "other"),
    (document(checkpoints="shared"), "checkpoints.malformed", "absolute path"),
    (document(checkpoints="/mnt/a "), "checkpoints.malformed", "absolute path"),
    (document(checkpoints="/mnt/a\n"), "checkpoints.malformed", "absolute path"),
    (document(backup={"folder": "/mnt/a\\"}), "backup.folder.malformed", "absolute path"),
    (document(checkpoints="/mnt/x\nExecStart=/bin/sh"), "checkpoints.malformed", "absolute path"),
    (document(mount="/srv"), "mount.elsewhere", "/srv does not hold /mnt/shared/dorm"),
    (document(program="/opt/%n"), "program.malformed", "absolute path"),
    (document(store_limit="many"), "store_limit.malformed", "not a quantity"),
    (document(store_limit="1MiB"), "store_limit.out_of_range", "at least 1GiB"),
    (document(ports={"clients": 4222, "routes": 4222}), "ports.twice", "the same port"),
    (document(ports={"clients": 0}), "ports.clients.out_of_range", "at least 1"),
    (document(backup={"machines": ["n4"]}), "backup.machines.unknown_machine", "n4"),
    (document(backup={"every": "daily\nUser=root"}), "backup.every.malformed", "systemd.time"),
    (document(backup={"keep": 0}), "backup.keep.out_of_range", "at least 1"),
    (document(archives={"size": "10GiB"}), "archives.place.missing", "s3://BUCKET/PREFIX"),
    (document(archives={"place": "archives"}), "archives.place.malformed", "absolute path"),
    (document(archives={"place": "/srv/a\nUser=root"}), "archives.place.malformed", "absolute path"),
    (document(archives={"place": "/srv/a", "size": "many"}), "archives.size.malformed", "not a quantity"),
    (document(archives={"place": "/srv/a", "size": "1"}), "archives.size.out_of_range", "at least 1MiB"),
    (document(archives={"place": "/srv/a", "age": "soon"}), "archives.age.malformed", "a duration"),
    (document(archives={"place": "/srv/a", "keep": "7 days"}), "archives.keep.malformed", "a duration"),
    (document(archives={"place": "/srv/a", "keep": "7x"}), "archives.keep.malformed", "7x"),
    (document(webhooks={"machines": ["n4"]}), "webhooks.machines.unknown_machine", "n4"),
    (document(webhooks={"machines": ["n1"], "allow": ["10.20.0.0/33"]}), "webhooks.allow.malformed", "10.1.0.0/16"),
    (document(webhooks={"machine": "n1"}), "webhooks", "machine"),
    (document(nodes={"*": {"runtime": "podman"}}), "nodes", "runtime"),
    (document(nodes={"*": {"gpu": ["0"]}}), "nodes", "gpu"),
    (document(nodes={"*": {"capacity": {"cpu": "many"}}}), "nodes.malformed", "cpu"),
    (document(nodes={"*": {"labels": {"a=b": "c"}}}), "nodes.malformed", "no '='"),
    (document(nodes={"*": {"gpus": ["0\nUser=x"]}}), "nodes", "nodes"),
]


@pytest.mark.parametrize(("given", "code", "words"), REFUSED, ids=[code for _, code, _ in REFUSED])
def test_settings_that_cannot_be_used(given: Any, code: str, words: str) -> None:
    with pytest.raises(DeploymentError) as refused:
        check(given)
    assert refused.value.code.startswith(f"deploy.settings.{code}")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_each_machine_connects_to_its_own_server_first() -> None:
    found = deployment()
    assert found.url("n2") == "tls://10.0.0.2:4222,tls://10.0.0.1:4222,tls://10.0.0.3:4222"
    assert found.url("gpu-7") == found.url()
    six = deployment(machines={"n1": "2001:db8::1"}, servers=["n1"], masters=["n1"], api=[], backup={}, trust=False)
    assert six.url() == "nats://[2001:db8::1]:4222"


def test_the_first_pattern_that_matches_counts() -> None:
    found = deployment(nodes={"gpu-7": {"gpus": ["7"]}, "gpu-*": {"gpus": ["0"]}})
    seven, eight = found.node("gpu-7"), found.node("gpu-8")
    assert seven is not None
    assert seven.gpus == ["7"]
    assert eight is not None
    assert eight.gpus == ["0"]
    assert found.node("n1") is None
    assert (found.knows("n1"), found.knows("other")) == (True, False)
