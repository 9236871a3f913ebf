"""Metrics of one deliverer since it started: by outcome, never by webhook, so that their number is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.metrics.cluster import counter, gauge, histogram
from dorm.metrics.families import WEBHOOK_OUTCOMES, WEBHOOK_STATES
from dorm.metrics.tally import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

    from dorm.webhooks.endpoints import Endpoint
    from dorm.webhooks.sending import Outcome

_REQUEST_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0)
"""Seconds, up to the time limit of a request."""
_DELIVERY_BOUNDS = (0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43_200.0, 259_200.0)
"""Seconds, up to the whole schedule of attempts."""


def outcome_of(outcome: Outcome) -> str:
    """Return one of `families.WEBHOOK_OUTCOMES`."""
    if outcome.delivered:
        return "delivered"
    if outcome.gone:
        return "gone"
    if not outcome.status:
        return "no_answer"
    return "failed" if outcome.status >= 500 else "refused"


class Measured:
    """Of one deliverer."""

    def __init__(self) -> None:
        self.attempts = dict.fromkeys(WEBHOOK_OUTCOMES, 0)
        self.given_up = 0
        self.requests = Histogram.empty(_REQUEST_BOUNDS)
        self.deliveries = Histogram.empty(_DELIVERY_BOUNDS)

    def attempted(self, outcome: Outcome, took_s: float, since_s: float) -> None:
        """Count a request with its duration; `since_s`: since its event was stored on the log."""
        self.attempts[outcome_of(outcome)] += 1
        self.requests.observe(took_s)
        if outcome.delivered:
            self.deliveries.observe(since_s)

    def metrics(self, webhooks: Iterable[Endpoint]) -> Iterator[Metric]:
        states = dict.fromkeys(WEBHOOK_STATES, 0)
        for one in webhooks:
            states[one.state] += 1
        yield gauge("dorm_webhooks", states)
        yield counter("dorm_webhook_attempts_total", self.attempts)
        yield counter("dorm_webhook_events_given_up_total", self.given_up)
        yield histogram("dorm_webhook_request_seconds", {(): self.requests})
        yield histogram("dorm_webhook_delivery_seconds", {(): self.deliveries})
