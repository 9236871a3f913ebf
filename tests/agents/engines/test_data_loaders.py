"""PyTorch's data loaders with workers in a plain process: they pass batches by sockets below the temporary folder."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from agents.runtime.interface import Key
from agents.runtime.process.runtime import ProcessRuntime
from tests.agents.harness import ended

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agents.harness import Harness

pytest.importorskip("torch", reason="needs PyTorch: `make test-engines`")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
LONGEST_S = 150.0
"""Each worker imports PyTorch, unless it is forked."""
_PROGRAM = """
import json, sys, torch, torch.multiprocessing
from torch.utils.data import DataLoader, TensorDataset

def total(sharing, method):
    torch.multiprocessing.set_sharing_strategy(sharing)
    data = TensorDataset(torch.arange(64.0).view(16, 4), torch.arange(16))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=method, timeout=60)
    return sum(float(x.sum()) for x, _ in loader)

if __name__ == "__main__":
    print(json.dumps(total(*sys.argv[1:])))
"""


@pytest.mark.parametrize(("sharing", "method"), [
    ("file_descriptor", "fork"), ("file_descriptor", "forkserver"), ("file_system", "fork"),
])  # fmt: skip
async def test_a_loader_with_two_workers_reads_every_batch(
    process_harness: Harness, tmp_path: Path, sharing: str, method: str
) -> None:
    runtime = ProcessRuntime("node", tmp_path.joinpath(*["a-data-folder-with-a-long-path"] * 4))
    await runtime.open()
    script = f'cat > loader.py <<\\EOF\n{_PROGRAM}EOF\nexec python3 loader.py "$@"'
    spec = process_harness.spec("sh", "-c", script, "sh", sharing, method, key=Key("a" * 128, 1, 0))
    try:
        await runtime.ensure(spec)
        async with asyncio.timeout(LONGEST_S):
            said = b"".join([piece async for piece in runtime.logs(spec.key, follow=True, tail=None)])
        seen = await ended(runtime, spec.key)
        assert seen.exit_code == 0, said.decode()
        assert json.loads(said) == sum(range(64))
    finally:
        await runtime.stop(spec.key, 0)
        await runtime.remove(spec.key)
        await runtime.close()
