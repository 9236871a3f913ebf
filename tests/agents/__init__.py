import pytest

pytest.register_assert_rewrite("tests.agents.runtime_conformance", "tests.agents.harness")
