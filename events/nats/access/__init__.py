"""Who a connection to a NATS server is, and what the server forbids it.

    credentials   name, role and key of an identity, read from a file or an environment variable
    names         the subjects and prefixes that a server's configuration and its clients share
    denials       a request that the server forbids fails at once, with role and subject
    addresses     servers' addresses, checked
    message_ids   ids of messages that no other identity can know

Start with `credentials`.  Imports the vocabulary and the log's errors.  What each role may do is data of `dorm.security`.
"""
