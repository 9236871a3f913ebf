"""Webhooks: events of the log, sent to people's own programs over HTTP, as Standard Webhooks with a CloudEvent as body.

    endpoints   pure: what the log says of webhooks.  Start here
    choosing    pure: which events a webhook wants, and the body that is sent
    keys        the file that keys are derived from, and signatures
    addresses   which addresses may be connected to
    sending     one request
    notifying   pure: what apps ask to be notified of, and whether it may be sent
    notifier    a worker for those
    worker      one webhook: from its place in the log to its endpoint, with retries
    waiting     which apps wait long, as events of their own
    deliverer   runs a worker for each webhook
    measured    what a deliverer has done, as metrics
    asking      what the commands publish

A webhook's place in the log is a durable consumer of the log's server (`events.nats.places.deliveries`): what a killed
deliverer had not finished is delivered by the next one.  Each webhook has a consumer and a worker of its own, so one that
is dead delays no other.  Imports the core, the log and the metrics; nothing else of the cluster knows of webhooks.
"""
