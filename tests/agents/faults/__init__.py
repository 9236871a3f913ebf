"""Agents through outages, restarts, full disks, expired leases and races: containers neither lost nor doubled."""
