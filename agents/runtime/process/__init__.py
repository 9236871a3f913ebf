"""Plain processes, each with a session and a working directory of its own.

runtime      the runtime
supervisor   starts one container, outlives the agent, records how it ended, and enforces the lease
records      what a container's folder says;  logs: its output
"""
