"""The events that a node publishes: facts about its containers, its heartbeats, and its containers' output.

    reporter     facts about containers, made from what the engine lists
    last_words   what a container wrote last before it failed
    outbox       facts on their way to the log
    feed         progress between two marks, on its way to the stream beside the log
    heartbeat    the node's periodic report
    usage        what containers have used, for the report of their end
    logs         requests for container output
    vitals       how the agent's process is, for metrics;  status: the same, for who asks

Start with `reporter`.  Imports `events`, and the parts of the agent that it reports on (`desired`, `progress`,
`identity`, `ledger`, `runtime`); `agents.agent` drives it.
"""
