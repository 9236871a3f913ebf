"""Generates the reference pages of the site from the code, so that they cannot fall behind it.

    commands   every command with its arguments and options, from the typer app
    kinds      every kind of event with its fields, from the msgspec types
    spec       the fields of an app spec, from its JSON Schema
    policies   every policy with its parameters, from their classes
    codes      every error code, from the exceptions and where they are raised
    hook       adds these pages to the MkDocs build

Only `hook` imports MkDocs.  The others return text, which the tests check without it.
"""
