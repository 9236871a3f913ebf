"""The HTTP API next to a busy cluster: reads, submissions, a thousand readers of a stream, and any moment of a long log.

api            the whole bench, and its figures; start here
processes      a log's server, a master and an API, each in its own process
load           what keeps the master busy, and how long each round takes
reader_rounds  the master's rounds, without readers and with them
callers        reads, submissions and streams, from separate processes
browser        how soon a browser draws a new record
"""
