"""The dashboard's files, from the package `dorm.web`, with a strict Content-Security-Policy.

They are read once, when the server starts, so a path in a request is looked up among names that exist and reaches no file.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib import resources
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from dorm.api.errors import Missing
from dorm.api.responses import packed, packs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.resources.abc import Traversable

PACKAGE = "dorm.web"
_WORKER = "worker.js"
"""A shared worker has a policy of its own."""
_MEDIA = {
    "html": "text/html", "js": "text/javascript", "mjs": "text/javascript", "css": "text/css", "svg": "image/svg+xml",
    "png": "image/png", "ico": "image/x-icon", "woff2": "font/woff2", "json": "application/json", "txt": "text/plain",
    "webmanifest": "application/manifest+json", "map": "application/json",
}  # fmt: skip
_INLINE = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)


class File(msgspec.Struct, frozen=True):
    """One file, ready to be sent."""

    body: bytes
    packed: bytes | None
    media: str
    tag: str


class Page:
    """All files of the page."""

    def __init__(self, files: dict[str, File], embed_in: Sequence[str] = ()) -> None:
        """`embed_in`: sites that may show it in a frame; nobody frames the page on which people sign in."""
        self._files = files
        index = files.get("index.html")
        text = index.body.decode() if index is not None else ""
        self._policies = {"index.html": policy(text, embed_in)}
        self._policy = policy(text)

    @classmethod
    def load(cls, archive: str = "", embed_in: Sequence[str] = ()) -> Page:
        """Read the package; without it, or without its files, there is no page. The page of an archive shows its name."""
        try:
            root = resources.files(PACKAGE) / "page"
        except ModuleNotFoundError:
            return cls({})
        if not root.is_dir():
            return cls({})
        from dorm.web.page_files import lean

        files = {name: lean(name, body) for name, body in _walk(root, "")}
        if "index.html" in files:
            # Tabs share a worker with those of the same version alone.
            metas = {"dorm-version": _version(files), **({"dorm-archive": archive} if archive else {})}
            head = "".join(f'<meta name="{name}" content="{html.escape(value)}">\n' for name, value in metas.items())
            files["index.html"] = files["index.html"].replace(b"</head>", f"{head}</head>".encode(), 1)
        return cls({name: _file(name, body) for name, body in files.items()}, embed_in)

    async def sign_in(self, request: web.Request) -> web.StreamResponse:
        """The page on which a browser proves whose it is."""
        return self._send(request, "sign-in.html")

    @staticmethod
    def to_sign_in(request: web.Request) -> web.Response:
        """Return the answer that leads a browser there.  It keeps what stands behind the `#`, so that it can come back."""
        query = request.rel_url.raw_query_string
        to = f"sign-in?{query}" if query else "sign-in"
        return web.Response(status=303, headers={"Location": to, "Cache-Control": "no-store"})

    async def index(self, request: web.Request) -> web.StreamResponse:
        return self._send(request, "index.html")

    async def asset(self, request: web.Request) -> web.StreamResponse:
        return self._send(request, request.match_info["path"])

    def _send(self, request: web.Request, name: str) -> web.Response:
        """Raises Missing."""
        file = self._files.get(name)
        if file is None:
            if not self._files:
                text = (
                    "the dashboard is not part of this installation; the API is at /v1, described by /v1/openapi.json"
                )
                raise Missing(text, code="page.not_installed")
            raise Missing("there is no such file; the dashboard is at /", code="api.path.unknown")
        headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if file.media == "text/html" or name == _WORKER:
            headers["Content-Security-Policy"] = self._policies.get(name, self._policy)
        if request.headers.get("If-None-Match") == file.tag:
            return web.Response(status=304, headers=headers)
        use_packed = file.packed is not None and packs(request)
        if use_packed:
            headers["Content-Encoding"] = "gzip"
        body = file.packed if use_packed else file.body
        charset = "utf-8" if file.media.startswith("text/") or file.media == "application/json" else None
        return web.Response(body=body, content_type=file.media, charset=charset, headers=headers)


def policy(text: str, embed_in: Sequence[str] = ()) -> str:
    """Return the Content-Security-Policy of a page: nothing from elsewhere, and no inline scripts except its own (an import
    map is one).  `embed_in`: sites that may show it in a frame."""
    framing = " ".join(embed_in) or "'none'"
    scripts = [base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode() for inline in _INLINE.findall(text)]
    hashes = "".join(f" 'sha256-{script}'" for script in scripts)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self'{hashes}",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "connect-src 'self'",
            "worker-src 'self'",
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            f"frame-ancestors {framing}",
        )
    )


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _MEDIA:
            yield f"{prefix}{entry.name}", entry.read_bytes()


def _version(files: dict[str, bytes]) -> str:
    """Return a name of these files: other content has another one."""
    content = hashlib.sha256()
    for name, body in sorted(files.items()):
        content.update(f"{name} {len(body)}\n".encode() + body)
    return content.hexdigest()[:16]


def _file(name: str, body: bytes) -> File:
    media = _MEDIA[name.rpartition(".")[2]]
    text = media.startswith("text/") or media in ("image/svg+xml", "application/json")
    return File(body, packed(body) if text else None, media, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
