"""One document as the specs of many apps.

    expanding    a document with `array` or `sweep` into the specs of its apps.  Start here
    placeholders parameters in commands
    schema       the fields of such a document as JSON Schema

Imports `events.spec`.
"""
