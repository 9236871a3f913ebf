"""Webhooks: events of the log, sent to users' programs over HTTP, as Standard Webhooks with a CloudEvent as body.

    endpoints   pure: the webhooks on the log.  Start here
    choosing    pure: the events that a webhook selects, and the body that is sent
    keys        the file that keys are derived from, and signatures
    addresses   which addresses may be connected to
    sending     one request
    notifying   pure: what apps ask to be notified of, and whether it may be sent
    notifier    a worker for those
    worker      one webhook: from its place in the log to its endpoint, with retries
    waiting     publishes events about apps that wait long
    deliverer   runs a worker for each webhook
    measured    a deliverer's work, as metrics
    asking      what the commands publish

A webhook's place in the log is a durable consumer of the log's server (`events.nats.places`): the next deliverer
delivers what a killed one had not finished.  Each webhook has a consumer and a worker of its own, so a dead one delays no
other.  Imports the core, the log and the metrics; no other part of the cluster knows about webhooks.
"""
