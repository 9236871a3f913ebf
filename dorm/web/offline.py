"""The page as one file that needs no network: its modules linked into one script, its data inside.

The script and the style are named by their hashes in the file's Content-Security-Policy, so nothing else in it can run, and no
address is reachable from it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from pathlib import PurePosixPath

from dorm.web.page_files import read

_IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"(\.[^"]+)";\s*$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_DECLARED = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) ([A-Za-z_$][\w$]*)", re.MULTILINE)
_LIST = re.compile(r"^(.*?)export\s*\{([^}]*)\};?\s*$", re.MULTILINE)
_LEFT = re.compile(r"^\s*(import|export)\b.*$", re.MULTILINE)


class LinkError(Exception):
    """A module of the page has an import or export in a form that `link` does not read."""


def page(recording: bytes, title: str) -> str:
    """Return the whole file.  `recording` is the JSON that `EmbeddedSource` in `page/source.js` reads."""
    script = link("main.js")
    style = read("style.css").decode()
    data = base64.b64encode(gzip.compress(recording, 6, mtime=0)).decode()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    icon = base64.b64encode(read("icon.svg")).decode()
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>{style}</style>
</head>
<body>
<div id="app"><p class="boot">Opening the recording …</p></div>
<noscript>This page needs JavaScript.</noscript>
<script type="application/octet-stream" id="recording">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def link(entry: str) -> str:
    """Return one script that does what the module does with all that it imports, each module in a scope of its own.

    Reads the forms that the page's modules use: named imports on lines of their own, exported declarations, export lists.
    Raises LinkError for any other."""
    done: dict[str, str] = {}
    _add(entry, done, ())
    modules = "\n".join(f"$modules[{name!r}] = (() => {{\n{text}\n}})();" for name, text in done.items())
    script = f'"use strict";\n(() => {{\nconst $modules = {{}};\n{modules}\n}})();'
    return script.replace("</", "<\\/")


def _add(name: str, done: dict[str, str], path: tuple[str, ...]) -> None:
    if name in done:
        return
    if name in path:
        raise LinkError(f"modules import each other: {' -> '.join([*path, name])}")
    text = read(name).decode()
    exports: list[str] = [f"{found}: {found}" for found in _DECLARED.findall(text)]

    def imported(found: re.Match[str]) -> str:
        other = _resolved(name, found[2])
        _add(other, done, (*path, name))
        names = ", ".join(": ".join(name.split(" as ")) for name in _names(found[1]))
        return f"const {{ {names} }} = $modules[{other!r}];"

    def listed(found: re.Match[str]) -> str:
        exports.extend(": ".join(reversed(name.split(" as "))) if " as " in name else name for name in _names(found[2]))
        return found[1]

    text = _EXPORT.sub("", _LIST.sub(listed, _IMPORT.sub(imported, text)))
    if left := _LEFT.search(text):
        raise LinkError(f"{name}: {left[0].strip()[:80]}")
    done[name] = f"{text}\nreturn {{ {', '.join(exports)} }};"


def _names(listed: str) -> list[str]:
    return [" ".join(one.split()) for one in listed.split(",") if one.strip()]


def _resolved(importer: str, relative: str) -> str:
    parts = list(PurePosixPath(importer).parent.parts)
    for part in PurePosixPath(relative).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
