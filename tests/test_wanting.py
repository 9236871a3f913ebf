"""A test run says in one line what it lacked."""

from __future__ import annotations

import pytest

from tests.wanting import line

NO_DOCKER = "no Docker engine answers, and none can be started: not root"


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ([], ""),
        ([NO_DOCKER], "not run: 1 test wants Docker"),
        (
            [
                "there is no chromium",
                NO_DOCKER,
                "no machines can be made: not installed: dockerd",
                "needs PyTorch: `make`",
            ],
            "not run: 2 tests want Docker, 1 Chromium, 1 PyTorch (make test-engines)",
        ),
        (["DORM_TEST_ENGINE=none", "only root may choose another user"], "not run: 1 test wants Docker, 1 root"),
        (["needs mpirun (Debian: openmpi-bin) and mpi4py (the extra `mpi`)"], "not run: 1 test wants Open MPI"),
        (["another record has the same time"], "not run: 1 for other reasons"),
    ],
)
def test_each_reason_counts_for_what_it_wants(reasons: list[str], said: str) -> None:
    assert line(reasons) == said
