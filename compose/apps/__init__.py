"""Sample apps: real data-parallel training in NumPy over TCP, written against Dorm's contract with apps and nothing else.

    logistic, factorize, mlp   programs and their models: `python3 -m compose.apps.logistic --steps 400 [--resume]`
    model        the interface between a model and the loop;  softmax: classification, for two of them;  arrays: types
    options      the command line that all programs share
    training     the loop: shard gradients, sum, update, report, save, stop
    batches      which samples a step uses, and which worker computes which of its shards
    collective   the ring that sums over workers;  rendezvous: how they find each other;  frames: the messages between them
    checkpoint   saving and resuming, atomically
    progress     the lines in DORM_PROGRESS;  presence: each worker's own record of its running time
    contract     the DORM_* environment
    process      signals and threads of a worker, set before NumPy loads
    digits       the data;  heldout: the part kept for accuracy
    failures     everything that ends a worker, and its exit code

Python and NumPy are all they need.  They run under any cluster manager that keeps the contract, and standalone.

**What makes a resize harmless.**  The samples of a step are a function of seed and step.  They are cut into 24 shards whose
number never changes.  A worker computes a contiguous run of them, and a sum travels the workers in rank order, to which each
adds its shards one by one.  So the additions happen in the same order for any number of workers, and the loss after K steps
does not depend on how often, and to what size, the app was resized.

**What ends a worker.**  Exit code 0: all steps are done.  143: stopped by SIGTERM or SIGINT, its work saved (or nothing to
save yet).  Others are failures with one line on stderr; `failures` lists them.  When any worker is asked to stop, the flag
travels with the sum, so that all stop after the same step.
"""
