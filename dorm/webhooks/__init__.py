"""Webhooks: events of the log, sent to users' programs over HTTP, as Standard Webhooks with a CloudEvent as body.

    endpoints         pure: the webhooks on the log, and which events each delivers. Start here
    webhook_keys      the file that keys are derived from, and signatures
    sending           one request to a permitted address, and a deliverer's counts
    worker            one webhook: from its place in the log to its endpoint, with retries
    notifier          a worker for what apps ask to be notified of
    deliverer         runs a worker for each webhook, and publishes events about apps that wait long
    webhook_requests  what the commands publish

A webhook's place in the log is a durable consumer of the log's server (`events.nats.places`): the next deliverer
delivers what a killed one had not finished.  Each webhook has a consumer and a worker of its own, so a dead one delays no
other.  Imports the core, the log and the metrics; no other part of the cluster knows about webhooks.
"""
