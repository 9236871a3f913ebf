"""The policies to choose from: all of them, each with a schema that its own parameters satisfy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jsonschema
import pytest

from dorm.core.query.in_force import offered
from dorm.policies.parameters import ParameterError
from dorm.policies.registry import names, policy
from events.kinds import PolicyPlugin
from tests.api.served import connected, served

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer


@pytest.mark.usefixtures("only_policies_of_ours")
def test_schemas_accept_what_policies_accept() -> None:
    found = {one.name: one for one in offered({})}
    assert list(found) == names()
    for name, one in found.items():
        jsonschema.Draft202012Validator.check_schema(one.schema)
        check = jsonschema.Draft202012Validator(one.schema)
        defaults = {key: each["default"] for key, each in one.schema["properties"].items()}
        assert defaults == policy(name).check_params({})
        check.validate(defaults)
        assert not check.is_valid({**defaults, "colour": 1})
        for key, each in one.schema["properties"].items():
            for wrong in [each["maximum"] + 1, each["minimum"] - 1, "much"] if "maximum" in each else []:
                assert not check.is_valid({key: wrong})
                with pytest.raises(ParameterError):
                    policy(name).check_params({key: wrong})
        assert one.gist


def test_plug_ins_are_offered_with_what_their_master_announced() -> None:
    plugin = PolicyPlugin(name="fair", version=3, plugin="fair-policies 1.0", defaults={"sharpness": 0.5})
    known = offered({"fair": plugin})[-1]
    assert (known.name, known.version, known.plugin) == ("fair", 3, "fair-policies 1.0")
    assert known.schema["properties"] == {"sharpness": {"default": 0.5, "type": "number"}}


@pytest.mark.nats
async def test_the_list_of_policies_is_served(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, served(connection) as api:
        found = await api.get("/v1/policies")
        assert (found["policy"], [one["name"] for one in found["policies"]]) == ("dorm", names())
