"""`dorm run` of a folder on a cluster of Docker containers, which have none of this machine's files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from compose.image import SAMPLES_REF
from tests.e2e import forked
from tests.e2e.commands import environment
from tests.e2e.local_up import leaving_nothing, up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.nats, pytest.mark.docker, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(180),
]  # fmt: skip


async def test_a_folder_reaches_containers_which_may_write_to_their_copies(
    docker_host: str, docker_image: str, tmp_path: Path
) -> None:
    del docker_image
    project = tmp_path / "project"
    (project / "lib").mkdir(parents=True)
    (project / "lib" / "model.py").write_text("NAME = 'linear'\n")
    (project / "train.py").write_text(
        "import os\nfrom lib import model\nopen('made', 'w').write('x')\n"
        "print(os.getcwd(), os.getuid() != 0, model.NAME, sorted(os.listdir('.')), flush=True)\n"
    )
    async with leaving_nothing(tmp_path) as folder, up(
        folder, "--runtime", "docker", "--docker", docker_host, known=True
    ) as cluster:  # fmt: skip
        words = ("run", "--image", SAMPLES_REF, "--cpu", "500m", "--", "python3", "train.py")
        env = environment(cluster.home)
        code, out, err = await forked.command(words, env, b"", 120.0, project)
        assert (code, out.decode()) == (
            0,
            f"/dorm/project/up/work {os.getuid() == 0} linear ['lib', 'made', 'train.py']\n",
        ), err
        assert b"shipped its folder (2 files, " in err
    assert not (project / "made").exists()
