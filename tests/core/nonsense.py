"""What strangers and broken programs may write to the log: none of it may do any harm."""

from __future__ import annotations

import json


def nonsense(node: str, app: str) -> list[tuple[str, bytes]]:
    """(end of the subject, body) for each."""
    exited = {"app": app, "generation": 1, "slot": 0, "node": node, "exit_code": 0}
    lost = {"kind": "NodeLost", "node": node, "last_heard": 0}
    joined = {"node": node, "address": "a", "capacity": {"cpu": -1}, "ports": [9, 1]}
    return [
        ("AppSubmitted.ann", b"\xc1 what"),
        ("AppSubmitted.ann", b"[1]"),
        ("AppSubmitted.ann", _json(spec={"name": "ant"})),
        ("AppSubmitted.ann", _json(spec={"name": "ant", "n_min": 10**40})),
        ("AppSubmitted.ann", b'{"spec":' + b"[" * 3000 + b"]" * 3000 + b"}"),
        ("AppUpdated.ann", _json(app=app, n_max=0)),
        ("NoSuchKind.ann", b"{}"),
        ("AppCheckpointed.ann", _json(app=app, generation=1, step=10**30)),
        ("AppProgressed.ann", _json(app=app, generation=1, step=-1)),
        ("PolicyChanged.ann", _json(policy="dorm", params={"theta1": 10**400})),
        ("PolicyChanged.ann", _json(policy="static", params={"count": 10**30})),
        ("PolicyChanged.ann", _json(policy="none such", node_lease_s=50)),
        (f"NodeJoined.{node}", _json(**joined)),
        (f"NodeJoined.{node}", _json(**{**joined, "capacity": {"cpu": 10**30}, "ports": [1, 2]})),
        ("NodeJoined.ann", _json(**{**joined, "capacity": {"cpu": 9000}, "ports": [1, 2]})),
        ("NodeLeft.ann", _json(node=node)),
        ("ContainerExited.ann", _json(**exited)),
        (f"ContainerExited.{node}", _json(**{**exited, "generation": 10**6})),
        (f"ContainerExited.{node}", _json(**{**exited, "exit_code": 10**30})),
        ("round.master", b"{}"),
        ("round.master", b"\xc1"),
        ("round.master", _json(epoch=0, basis=0, allocated=False, events=[])),
        ("round.master", _json(epoch=10**6, basis=0, allocated=False, events=[{"kind": "MasterElected", "epoch": 9**9}])),
        ("round.master", _json(epoch=1, basis=10**6, allocated=False, events=[lost])),
    ]  # fmt: skip


def _json(**body: object) -> bytes:
    return json.dumps(body).encode()
