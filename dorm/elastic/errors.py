"""The errors that a training script may see.

ElasticError            root: `code` is stable, the text may change
├── ContractError       environment, announcement or call does not follow the contract
├── StateError          the state cannot be sent or loaded
├── LeftBehind          the others continue without this member: end the process
└── PeerError           a peer does not answer as it should
"""

from __future__ import annotations

__all__ = ["ContractError", "ElasticError", "LeftBehind", "PeerError", "StateError"]


class ElasticError(Exception):
    """Root of the library's errors; programs compare `code`."""

    code = "elastic.failed"

    def __init__(self, text: str, *, code: str = "") -> None:
        super().__init__(text)
        self.code = code or type(self).code


class ContractError(ElasticError, ValueError):
    """The environment, an announcement or a call does not follow the contract."""

    code = "elastic.contract"


class StateError(ElasticError, TypeError):
    """The state holds something that cannot be sent, or received data does not fit it."""

    code = "elastic.state"


class LeftBehind(ElasticError):
    """The others continue without this member, for instance because it was frozen.  Its results no longer count."""

    code = "elastic.left_behind"


class PeerError(ElasticError, OSError):
    """A peer sent something that does not follow the protocol, or cannot be reached."""

    code = "elastic.peer"
