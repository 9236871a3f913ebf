"""Sessions in containers: commands, shells and forwarded connections, between a person's client and a node's agent.

    messages   what the two say to each other, and the bounds of it
    commands   a command as the log may show it: one line, cut, without secrets

A session is a question to the agent (`events.log.interface.Bus`) whose answer lasts as long as the session: output comes in
its pieces, each acknowledged when the client has written it, so neither side holds more than a few.  What goes in is asked as
well, one message after the other, each answered once the container has taken it.  The subject of both names the tenant of the
container and the person (`events.subjects.session`), so a server that guards subjects decides who may enter, and nobody else
can add to a session.

Either side ends a session by going away.  The agent misses the listener of its answer, or hears nothing for `SILENT_S` from a
client that hangs; the client misses the agent's pieces.
"""
