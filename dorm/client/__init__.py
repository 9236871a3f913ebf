"""The client library for users' programs.

    client   submit an app, watch it, change it, cancel it
    tail     events in order, filtered, from any position

Start with `client`.
"""
