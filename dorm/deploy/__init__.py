"""A cluster on machines of its own: from one settings file to the files of each machine.

    settings    the file, checked; which part of the cluster each machine has
    layout      where things are on a machine
    rendering   settings and a machine's name into its files, from the templates in `compose/deploy`
    keys        the keys and certificates of such a cluster, and which of them a machine gets
    facing      what a machine lacks for its files: programs, mounts, addresses
    installing  writing the files, again and again, without overwriting what others changed
    installed   what the unit files of this machine say of its node
    backups     copies of the log in a folder, each checked before an older one goes
    folders     shipped folders beside these copies
    restore     a copy becomes the log of a cluster that knows its users again

`settings`, `layout` and `rendering` are pure.  Start with `rendering`.  Nothing here starts or stops anything: that is for the
machine's service manager.
"""
