"""Where the parts of a cluster are on their machines.  Every machine has the same places, so a unit file is read once."""

from __future__ import annotations

CONFIGURATION = "/etc/dorm"
NATS_CONFIGURATION = "/etc/dorm/nats.conf"
KEYS = "/etc/dorm/keys"
"""Folder that the NATS server reads: accounts and certificates."""
UNITS = "/etc/systemd/system"
SYSUSERS = "/etc/sysusers.d/dorm.conf"
TMPFILES = "/etc/tmpfiles.d/dorm.conf"
RECORD = "/etc/dorm/deployed.json"
"""Record of the files that `dorm deploy install` wrote here."""
DATA = "/var/lib/dorm"
STORE = "/var/lib/dorm/nats"
MASTER = "/var/lib/dorm/master"
"""Folder of the master's credentials and key, next to which it notes how far it has read the log."""
API = "/var/lib/dorm/api"
BACKUP = "/var/lib/dorm/backup"
WEBHOOKS = "/var/lib/dorm/webhooks"
WEBHOOKS_KEY = "webhooks.key"
"""Also its name in the admin's folder."""
SECRETS = {
    "NATS server": (KEYS, ("ca.pem", "server.pem", "server.key", "accounts.conf")),
    "master": (MASTER, ("master.json", "seal.nk")),
    "API": (API, ("api.json", "server.pem", "server.key")),
    "backup": (BACKUP, ("backup.json",)),
    "webhooks": (WEBHOOKS, ("webhooks.json", WEBHOOKS_KEY)),
}
"""Folder of the keys of each part of a cluster that knows its users."""
NODE = "/var/lib/dorm/node"
"""The node's own files: its identity and key, its containers' private directories."""
