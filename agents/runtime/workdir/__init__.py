"""Shipped project folders on a node: kept for the next container, and laid out for each one.

    cache      blobs on the node's disk, by tenant and hash; bounded, with room for each tenant
    placing    lays a folder out as a container's working directory

A container may write to its folder, so each has a copy of its own.  Blobs of the cache are read again only by their
hash: a blob that was damaged on the disk counts as missing and is fetched again (`agents.fetching`).
"""
