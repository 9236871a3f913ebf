"""Completes a bill of materials, and writes the licences of all that it names.  Called by `.ci/sbom`:

    notices.py BILL LOCK ENVIRONMENT BILL-OUT NOTICES-OUT

Each package of the bill gets the hashes of its files from the lock; a package without a licence's text ends this, since nobody
may pass it on.  The page's two modules of npm's are added, which no Python environment knows.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_VENDOR = _ROOT / "dorm/web/page/vendor"
_LICENCE = re.compile(r"(^|/)(licen[cs]e|copying|notice|authors)[^/]*$", re.IGNORECASE)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)[^\n]*\n((?:    --hash=sha256:[0-9a-f]{64}[^\n]*\n?)+)", re.MULTILINE)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def hashes_of(lock: str) -> dict[tuple[str, str], list[str]]:
    """By name and version, of every file that the lock allows."""
    return {(canonical(pin[1]), pin[2]): re.findall(r"sha256:([0-9a-f]{64})", pin[3]) for pin in _PIN.finditer(lock)}


def texts_of(found: Distribution) -> list[str]:
    """The texts of a package's licences and notices."""
    files = [file for file in found.files or [] if ".dist-info/" in str(file) and _LICENCE.search(str(file))]
    return [Path(str(found.locate_file(file))).read_text(errors="replace").strip() for file in sorted(files, key=str)]


def vendored() -> list[tuple[str, str]]:
    return [(path.stem, path.read_text().strip()) for path in sorted(_VENDOR.glob("*.LICENSE"))]


def completed(bill: dict[str, Any], hashes: dict[tuple[str, str], list[str]]) -> dict[str, Any]:
    for component in bill["components"]:
        key = (canonical(component["name"]), component["version"])
        component["externalReferences"] = [
            *(one for one in component.get("externalReferences", []) if one["type"] != "distribution"),
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{key[0]}/{key[1]}/",
                "hashes": [{"alg": "SHA-256", "content": content} for content in hashes[key]],
            },
        ]
    bill["components"] += [
        {"type": "library", "name": name, "bom-ref": f"npm:{name}", "description": "part of the dashboard's page"}
        for name, _ in vendored()
    ]
    return bill


def main() -> None:
    bill_file, lock_file, environment, bill_out, notices_out = map(Path, sys.argv[1:])
    bill = json.loads(bill_file.read_text())
    # Dorm itself is what the bill is of, and no part of it.
    bill["components"] = [one for one in bill["components"] if canonical(one["name"]) != "dorm"]
    folder = next(environment.glob("lib/python3.*/site-packages"))
    installed = {canonical(found.metadata["Name"]): found for found in distributions(path=[str(folder)])}
    parts = [
        f"# Licences of what Dorm is used with\n\n{len(bill['components'])} Python packages, and {len(vendored())} of npm's.\n"
    ]
    for component in sorted(bill["components"], key=lambda one: canonical(one["name"])):
        texts = texts_of(installed[canonical(component["name"])])
        if not texts:
            licences = json.dumps(component.get("licenses", []))
            texts = [f"This package brings no text of its licence; it names {licences}."]
            if licences == "[]":
                sys.exit(f"error: {component['name']} {component['version']} names no licence")
        parts.append(f"## {component['name']} {component['version']}\n\n" + "\n\n".join(texts) + "\n")
    parts += [f"## {name}\n\n{text}\n" for name, text in vendored()]
    notices_out.write_text("\n".join(parts))
    lines = json.dumps(completed(bill, hashes_of(lock_file.read_text())), indent=1)
    bill_out.write_text(lines + "\n")


if __name__ == "__main__":
    main()
