"""The commands of docs/images.md, in the order of the page, with a Docker engine; and the app that it describes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dorm.local.spec_files import load_document
from tests.docs.shown import REPOSITORY, Page, pages
from tests.e2e.story import until
from tests.samples.starter import printed, two_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.nats, pytest.mark.docker, pytest.mark.soak, pytest.mark.timeout(600)]
HERE = "tests/samples/test_images.py runs it"


def shown(page: Page) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands that the page leaves to this test, each with the output that it shows."""
    for block in page.blocks():
        if block.language == "console" and HERE in block.not_run:
            command = ""
            output: list[str] = []
            for line in block.lines:
                if line.startswith("$ "):
                    if command:
                        yield command, output
                    command, output = line.removeprefix("$ "), []
                else:
                    output.append(line)
            yield command, output


async def test_an_image_is_made_moved_and_run_without_a_registry(tmp_path: Path, docker_host: str) -> None:
    page = pages()["docs/images.md"]
    for block in page.blocks():
        if block.title:
            (tmp_path / block.title).write_text("\n".join(block.lines) + "\n")
    env = {
        **os.environ,
        "DOCKER_HOST": docker_host,
        "PYTHONPATH": str(REPOSITORY),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    commands = list(shown(page))
    assert len(commands) >= 6
    for command, output in commands:
        if command.startswith("dorm "):
            continue
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-ec", command], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if output:
            # Versions and hashes differ.
            assert done.stdout.split()[:1] == output[0].split()[:1], f"{command}\n{done.stdout}"
    async with two_nodes(tmp_path / "cluster", runtime="docker", docker=docker_host) as client:
        app = await client.submit(load_document(tmp_path / "sklearn.yaml"))
        state = await until(client, lambda s: bool(s.apps[app.id].ended), "it ends", timeout=100.0)
        assert state.apps[app.id].ended == "completed", state.apps[app.id].end_reason
        assert (await printed(client, state.apps[app.id])).startswith("scikit-learn ")
