import pytest

pytest.register_assert_rewrite("tests.agents.runtime.conformance", "tests.agents.harness")
