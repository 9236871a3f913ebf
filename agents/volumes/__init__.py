"""Volumes: folders of a node that it offers to apps by name.

    configuration  the volumes in the node's configuration
    offers         what of it is there now, which the agent announces (`NodeJoined.offers`), and what a container gets

Start with `offers`.  How a container sees a volume is the runtime's affair (`agents.runtime`): an engine mounts it, and so
does the supervisor of a plain process if it may; otherwise a process gets a link.
"""
