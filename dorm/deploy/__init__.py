"""A cluster on its own machines: from one settings file to the files of each machine.

    settings    the file, checked; which part of the cluster each machine has
    layout      where things are on a machine
    rendering   settings and a machine's name into its files, from the templates in `compose/deploy`
    keys        the keys and certificates of such a cluster, and which of them a machine gets
    facing      what a machine lacks: programs, mounts, addresses
    installing  writing the files repeatedly, without overwriting changes by others
    installed   what the unit files of this machine say about its node
    backups     copies of the log in a folder, each checked before an older one is removed
    folders     shipped folders next to these copies
    restore     turning a copy into the log of a cluster that knows its users

`settings`, `layout` and `rendering` are pure.  Start with `rendering`.  Nothing here starts or stops anything: that is for the
machine's service manager.
"""
