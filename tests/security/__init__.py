"""Who may do what: roles, the servers' configuration, keys on disk, and attacks on a real server."""
