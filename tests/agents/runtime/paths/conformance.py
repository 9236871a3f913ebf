"""Which paths a program finds: short ones to put sockets below, and nothing of the runtime's next to where it starts.  Part of
`conformance`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agents.runtime.interface import Key
from tests.agents.harness import Harness, ended, output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.runtime.interface import Runtime

LONGEST = 40
"""Characters of TMPDIR and HOME."""
SOCKET = 107
"""Bytes of a Unix socket's path."""
_PROGRAM = f"""
import json, multiprocessing, os, pathlib, socket, tempfile
from concurrent.futures import ProcessPoolExecutor

def pooled(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(abs, [-1, -2])

def shared():
    with multiprocessing.Manager() as manager:
        queue = manager.Queue()
        queue.put(3)
        return queue.get()

def heard(path):
    with socket.socket(socket.AF_UNIX) as service, socket.socket(socket.AF_UNIX) as client:
        service.bind(path)
        service.listen()
        client.connect(path)
        return len(path)

if __name__ == "__main__":
    tmp, home = tempfile.gettempdir(), os.path.expanduser("~")
    made = tempfile.mkdtemp()
    with ProcessPoolExecutor(2) as executor:
        executed = list(executor.map(abs, [-4]))
    print(json.dumps({{
        "tmp": len(tmp), "home": len(home), "executed": executed, "managed": shared(),
        "pools": [pooled(method) for method in ("fork", "spawn", "forkserver")],
        "in_tmp": heard(made + "/" + "s" * ({SOCKET} - {LONGEST} - len("/tmp01234567/"))),
        "in_home": heard(home + "/" + "s" * ({SOCKET} - {LONGEST} - 1)),
        "walked": len(list(os.walk(home))), "listed": sorted(os.listdir(tmp)),
        "temporary": tmp, "private": os.stat(tmp).st_mode & 0o7777, "owner": os.stat(tmp).st_uid,
        "absolute": os.path.isabs(tmp) and os.path.isabs(home),
    }}))
"""


class PathsConformance:
    """The tests of paths."""

    @pytest.fixture
    def deep(self, harness: Harness) -> Callable[[Path], Runtime]:
        """Makes a runtime whose root has this path."""
        raise NotImplementedError

    async def test_sockets_fit_into_the_temporary_folder_and_home_whatever_the_names(
        self, harness: Harness, deep: Callable[[Path], Runtime], tmp_path: Path
    ) -> None:
        root = tmp_path.joinpath(*["a-data-folder-with-a-long-path"] * 8)
        runtime = deep(root)
        await runtime.open()
        spec = harness.shell(
            'cat > "$HOME/program.py" <<\\EOF\n' + _PROGRAM + 'EOF\nexec python3 "$HOME/program.py"',
            key=Key("a" * 128, 10**9, 10**5),
        )
        try:
            await runtime.ensure(spec)
            seen = await ended(runtime, spec.key)
            said = await output(runtime, spec.key)
            assert seen.exit_code == 0, said
            found = json.loads(said)
            assert max(found["tmp"], found["home"]) <= LONGEST
            assert (found["executed"], found["managed"], found["pools"]) == ([4], 3, [[1, 2]] * 3)
            assert max(found["in_tmp"], found["in_home"]) <= SOCKET
            assert (found["absolute"], found["walked"] > 0) == (True, True)
            self.check_temporary(runtime, spec.key, found)
        finally:
            await runtime.stop(spec.key, 0)
            await runtime.remove(spec.key)
            await runtime.close()

    def check_temporary(self, runtime: Runtime, key: Key, found: dict[str, object]) -> None:
        """What else holds of the temporary folder."""
