"""A cluster on several machines: settings, files, keys, backups, and a whole cluster on loopback."""
