"""A project folder as the cluster has it: bytes named by their hash, which any node can check and lay out again.

    manifest   what is in the folder: paths, modes, links, and where the bytes of each file lie
    bundling   which files share a blob, and how large ones are cut
    limits     how large a folder may be, and for how long the cluster keeps it
    sealing    blobs as they are stored: compressed, and checked against their hash

Pure.  Clients pack (`dorm.workdir`), agents fetch and place (`agents.workdir`), and the blobs lie beside the log
(`events.log.files`).  Start with `manifest`.
"""

from __future__ import annotations

from events.workdir.limits import Limits
from events.workdir.manifest import File, Folder, Link, Manifest, ManifestError, Part, decode, encode
from events.workdir.sealing import hash_of, open_blob, seal_blob

__all__ = [
    "File",
    "Folder",
    "Limits",
    "Link",
    "Manifest",
    "ManifestError",
    "Part",
    "decode",
    "encode",
    "hash_of",
    "open_blob",
    "seal_blob",
]
