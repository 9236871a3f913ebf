"""What nats-py needs for WebSockets alone is not loaded by commands that use none, and is there for those that do."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
import events.nats.connection
assert "aiohttp.client" not in sys.modules, "loaded though nothing uses it"
{use}
assert "aiohttp.client" in sys.modules
"""


def loads(use: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM.format(use=use)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_is_loaded_by_its_first_use() -> None:
    loads("import aiohttp.web; aiohttp.web.Application()")
    loads("from aiohttp import web; web.Application()")
    loads("import aiohttp; aiohttp.ClientTimeout(total=1)")


def test_a_loaded_module_is_left_alone() -> None:
    program = "import aiohttp; before = aiohttp.ClientSession; import events.nats; import sys; "
    program += "assert sys.modules['aiohttp'].ClientSession is before"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_websocket_transport_finds_it() -> None:
    made = "async def made(): WebSocketTransport()"
    loads(f"import asyncio\nfrom nats.aio.transport import WebSocketTransport\n{made}\nasyncio.run(made())")


def test_programs_that_ask_whether_it_is_installed_get_the_answer_without_loading_it() -> None:
    program = "import events.nats, sys; from importlib.util import find_spec; "
    program += "assert find_spec('aiohttp').name == 'aiohttp'; assert 'aiohttp.client' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
