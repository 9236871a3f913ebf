"""Common parts of the commands of `dorm deploy`: the settings file and the folder of keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.errors import USAGE, Fail

if TYPE_CHECKING:
    from dorm.deploy.settings import Deployment
    from dorm.security.folder import KeyFolder

Settings = Annotated[
    Path,
    typer.Argument(
        metavar="SETTINGS", help="The cluster's machines and their parts; `dorm deploy example` prints one."
    ),
]
Keys = Annotated[
    Path,
    typer.Option(
        "--keys", metavar="DIR", help="Folder of the cluster on its admin's machine, from `dorm deploy keys`."
    ),
]


def read(file: Path) -> Deployment:
    """Return the settings in a file.  Raises Fail."""
    from dorm.deploy.settings import Deployment, DeploymentError, check
    from dorm.local.spec_files import load_document
    from events.documents import shape_of
    from events.spec import SpecError

    try:
        return check(load_document(file, shape_of(Deployment)))
    except SpecError as error:
        raise Fail.of(error, USAGE) from None
    except DeploymentError as error:
        raise Fail(f"{file}: {error}", USAGE, code=error.code) from None


def key_folder(path: Path) -> KeyFolder:
    """Return the keys in a cluster's folder, as `dorm init` has them too."""
    from dorm.local.founding import KEYS
    from dorm.security.folder import KeyFolder

    return KeyFolder(path.absolute() / KEYS)
