"""The needs of every worker of an app, regardless of its computation.

    contract     the DORM_* environment;  tf_config: a place from TF_CONFIG
    process      signals and threads of a worker, set before NumPy loads
    progress     the lines in DORM_PROGRESS;  presence: each worker's own record of its running time
    failures     everything that ends a worker, and its exit code
    arrays       types

Start with `contract`.  Imports Python's own library and NumPy's types, and nothing else of the apps.
"""
