"""Agents against real and simulated engines, and the conformance suite of the runtimes (`harness`)."""

import pytest

pytest.register_assert_rewrite(
    "tests.agents.runtime.conformance", "tests.agents.runtime.lease_conformance", "tests.agents.harness"
)
