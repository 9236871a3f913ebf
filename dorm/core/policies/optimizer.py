"""The policy `dorm`."""

from __future__ import annotations

from dorm.core.policies.exact import ExactPolicy


class OptimizerPolicy(ExactPolicy):
    name = "dorm"
    version = 2
