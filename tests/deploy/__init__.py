"""A cluster on machines of its own: settings, files, keys, backups, and the whole of it on loopback."""
