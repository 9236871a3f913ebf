"""A whole cluster on this machine, built from its real parts.

cluster       server, master and agents, started and stopped together, and what it waits for while it starts
nats_server   an embedded NATS server
founding      the first keys, streams and events of a cluster that knows its users
local_client  a client of the cluster that runs here, for users' programs
companions    the processes of the API and of users' views, which are restarted when they end
announced     what this machine's masters and agents announce: their version and plug-ins
runtimes      Docker if an engine answers, else plain processes
home          where such a cluster keeps its data, and how commands find it
commands      specs of typed commands, without a file
scripts       the script that such a command names, and whether it exists;  hints: what a failed one may have lacked
spec_files    app specs and cluster files on disk, the files that they name, and typed fields: KEY=VALUE
"""
