"""The project folder that an app starts in.

    shipping   what `dorm run` and `dorm submit` do with `workdir: .`
    files      dorm files: what the cluster keeps of shipped folders, its limits, and a copy of one

A group of `dorm.cli.main`.
"""
