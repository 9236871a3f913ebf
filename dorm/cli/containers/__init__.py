"""Commands that go into containers.

exec          a command in a container
shell         a shell in a container, on a terminal
port_forward  a container's port, on this machine
top_app       what an app's containers use
attaching     a session's streams, signals and terminal;  streams: this program's input and output, without blocking
naming        APP/RANK, and its completion
"""
