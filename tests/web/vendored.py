"""The files of others that the page and its tests use, each of an npm package: refreshed by `python -m tests.web.vendored`.

A package is taken in the version that stands here, and only if its bytes have the integrity hash that stands here; the file in
the repository then has the hash beside it.  `--check` compares without writing, and needs no network for the files themselves:
`--check --offline` hashes them alone.  To take a newer version, change version and hashes (the registry's page of the package
shows its integrity), run this, and look at the page.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

_REGISTRY = "https://registry.npmjs.org"
_ROOT = Path(__file__).resolve().parents[2]
_LARGEST = 64 << 20
_PAGE = "dorm/web/page/vendor"


class Package(NamedTuple):
    """One package, and the files that are taken from it: path in the package, path here, SHA-256."""

    name: str
    version: str
    integrity: str
    """Of the package's archive, as the registry has it."""
    license: str
    files: tuple[tuple[str, str, str], ...]


PACKAGES = (
    Package(
        "htm", "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        "Apache-2.0; the module holds Preact 10 (MIT)",
        (
            (
                "preact/standalone.module.js",
                f"{_PAGE}/preact.js",
                "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
            ),
            ("LICENSE", f"{_PAGE}/htm.LICENSE", "740725f7252e750af735d0028cc534970772f513331e9f68150fede8fb3ce00f"),
        ),
    ),
    Package(
        "preact", "10.4.1",
        "sha512-WKrRpCSwL2t3tpOOGhf2WfTpcmbpxaWtDbdJdKdjd0aEiTkvOmS4NBkG6kzlaAHI9AkQ3iVqbFWM3Ei7mZ4o1Q==",
        "MIT",
        (("LICENSE", f"{_PAGE}/preact.LICENSE", "1fe6958409c8c257a70c587a18b6f7f412b179b456630790d30b2ec9a8e4b7d4"),),
    ),
    Package(
        "axe-core", "4.14.1",
        "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        "MPL-2.0; for tests alone",
        (
            ("axe.min.js", "tests/web/vendor/axe.min.js", "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"),
            ("LICENSE", "tests/web/vendor/axe.LICENSE", "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e"),
        ),
    ),
)  # fmt: skip
"""What is vendored."""


def differences(package: Package) -> list[str]:
    """Return, for each file of a package that differs here, what is wrong."""
    found = []
    for _, here, expected in package.files:
        path = _ROOT / here
        actual = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        if actual != expected:
            found.append(f"{here}: {actual}, expected {expected}")
    return found


def fetch(package: Package) -> dict[str, bytes]:
    """Return a package's files by their paths here.  Raises ValueError if the archive or a file has other bytes."""
    short = package.name.rpartition("/")[2]
    address = f"{_REGISTRY}/{package.name}/-/{short}-{package.version}.tgz"
    with urllib.request.urlopen(address, timeout=60) as answer:
        archive = answer.read(_LARGEST)
    actual = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if actual != package.integrity:
        raise ValueError(f"{package.name} {package.version} has integrity {actual}, expected {package.integrity}")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
        for inside, here, expected in package.files:
            member = packed.extractfile(f"package/{inside}")
            body = member.read() if member is not None else b""
            if hashlib.sha256(body).hexdigest() != expected:
                raise ValueError(
                    f"{package.name}: {inside} has {hashlib.sha256(body).hexdigest()}, expected {expected}"
                )
            files[here] = body
    return files


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.web.vendored", description="Refresh the vendored modules.")
    parser.add_argument("--check", action="store_true", help="compare with the registry and write nothing")
    parser.add_argument("--offline", action="store_true", help="with --check: only hash the files that are here")
    given = parser.parse_args(arguments)
    wrong: list[str] = []
    for package in PACKAGES:
        try:
            files = {} if given.check and given.offline else fetch(package)
        except (OSError, ValueError) as error:
            wrong.append(f"{package.name}: {error}")
            continue
        for here, body in files.items():
            if not given.check:
                (_ROOT / here).parent.mkdir(parents=True, exist_ok=True)
                (_ROOT / here).write_bytes(body)
        wrong += differences(package)
    for text in wrong:
        print(text, file=sys.stderr)
    print(f"{sum(len(package.files) for package in PACKAGES)} files of {len(PACKAGES)} packages, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
