"""Identify the running build by a hash of its sources, so no one has to remember to raise a version."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

import msgpack
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable


@cache
def fingerprint(*packages: str) -> str:
    """Return 16 hex digits that are equal if these packages, Python, and the libraries that read events are the same.

    A program that may be edited while it runs has to call this early: later the files on disk may differ from the running
    code.
    """
    digest = hashlib.blake2b(digest_size=8)
    versions = (sys.version_info[:2], msgspec.__version__, msgpack.version)
    digest.update(repr(versions).encode())
    for package in packages:
        import_module(package)
        for name, source in _sources(files(package), package):
            digest.update(f"\0{name}\0{len(source)}\0".encode())
            digest.update(source)
    return digest.hexdigest()


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".py"):
            yield f"{name}.{entry.name}", entry.read_bytes()
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, f"{name}.{entry.name}")
