"""A whole cluster on this machine, built from its real parts.

cluster       server, master and agents, started and stopped together
nats_server   an embedded NATS server
founding      the first keys, streams and events of a cluster that knows its users
opening       a client of the cluster that runs here, for users' programs
companions    the processes of the API and of users' views, started again when they end
runtimes      Docker if an engine answers, else plain processes
home          where such a cluster keeps its data, and how commands find it
commands      specs of commands as they are typed, without a file
scripts       the script that such a command names, and whether it is there;  hints: what one that has failed may have lacked
spec_files    app specs and cluster files on disk
spec_includes what spec files hold by naming other files;  files_beside: these files;  requirements: lists of packages
spec_settings fields of a spec as they are typed: KEY=VALUE, and volumes by name
"""
