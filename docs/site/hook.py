"""The MkDocs hook: adds the generated pages and the pages from the top of the repository, and refuses external content."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))  # MkDocs loads a hook by its path, not as part of a package.

from docs.site import codes, commands, kinds, policies, spec  # noqa: E402

GENERATED = {
    "reference/commands.md": commands.page,
    "reference/errors.md": codes.page,
    "reference/events.md": kinds.page,
    "reference/policies.md": policies.page,
    "reference/spec.md": spec.page,
}
"""Pages of the reference that are not committed, by their place in the site."""

_FROM_THE_TOP = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_EXTERNAL = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\s(?:src|href)=["']?(?:https?:)?//""", re.IGNORECASE)


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that `docs/` does not hold."""
    for place, page in GENERATED.items():
        files.append(File.generated(config, place, content=page()))
    for name, place in _FROM_THE_TOP.items():
        text = (REPOSITORY / name).read_text()
        files.append(File.generated(config, place, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files at the top of the repository, which work where the source is read, become links within the site."""
    for name, place in _FROM_THE_TOP.items():
        markdown = re.sub(rf"\]\((?:(\.\./)*\.\./)?{re.escape(name)}", rf"](\g<1>{place}", markdown)
    return markdown


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """The site needs no network: refuse a page that loads anything from elsewhere."""
    if found := _EXTERNAL.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {found[0]}")
    return output
