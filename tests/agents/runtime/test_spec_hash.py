"""A container that runs during an upgrade keeps its hash, or the agent would replace it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agents.runtime.interface import ContainerSpec, Key, Mount, spec_hash

SPEC = ContainerSpec(
    key=Key("app-1", 3, 0),
    image="train:1",
    command=("python", "-m", "train"),
    env={"B": "2", "A": "1"},
    resources={"memory": 1 << 30, "cpu": 1500},
    checkpoint_dir="/c/app-1",
    grace_s=12.5,
    devices=("GPU-1", "GPU-0"),
)
FILES, WORKDIR, MOUNTS = {"z.json": "{}", "a": "x"}, "ab" * 16, (Mount("data", "/data", "/mnt", read_only=True),)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "d3c3c0a40fc90b788930f1bb25a366c5"),
        ({"files": FILES}, "1b77fdfc458d221f8ebde5e8e721bde4"),
        ({"workdir": WORKDIR}, "e3175e2e16c6cf17e5266de9eca185d9"),
        ({"files": FILES, "workdir": WORKDIR}, "0b471fe814698bca8c4a52769c206400"),
        ({"mounts": MOUNTS}, "fcf06d0556af890e4c07d26a8c03839d"),
        ({"files": FILES, "workdir": WORKDIR, "mounts": MOUNTS}, "91e9c887793f2af5e5f72fe929295783"),
    ],
)
def test_its_hash_is_the_one_of_release_0_6(fields: dict[str, Any], expected: str) -> None:
    spec = msgspec.structs.replace(SPEC, **fields)
    assert spec_hash(spec) == expected
    assert spec_hash(msgspec.structs.replace(spec, tenant="lab", outputs_dir="/o", stop="SIGUSR1 60")) == expected
