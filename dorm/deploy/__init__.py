"""A cluster on its own machines: from one settings file to the files of each machine.

    settings_file  the file, checked; which part of the cluster each machine has
    rendering      settings and a machine's name into its files, from the templates in `compose/deploy`; what a machine lacks
    keys           the keys and certificates of such a cluster, and which of them a machine gets
    layout         where things are on a machine
    installing     writing the files repeatedly, without overwriting changes by others, and reading them
    backups        copies of the log and of shipped folders, each checked before an older one is removed, and restoring one

`settings_file` and the templates of `rendering` are pure.  Start with `rendering`.  Nothing here starts or stops anything:
that is for the machine's service manager.
"""
