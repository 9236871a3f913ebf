"""Files of apps, asked of the agents that see them.

asking     where an app's files are, what there is, and the questions to agents
copying    which files a copy consists of, and where each goes
download   one file from an app;  upload: one file to an app
"""

from __future__ import annotations

from dorm.client.files.asking import Files, FilesRefused, Where
from dorm.client.files.copying import copy_from, copy_to

__all__ = ["Files", "FilesRefused", "Where", "copy_from", "copy_to"]
