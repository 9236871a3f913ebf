"""Sample apps: real data-parallel training in NumPy over TCP, written against Dorm's contract with apps and nothing else.

    logistic, factorize, mlp   programs and their models: `python3 -m compose.apps.logistic --steps 400 [--resume]`
    logistic_ps, logistic_tf, logistic_mpi   the first of them for the engines `ps`, `tensorflow` and `mpi`
    logistic_batch  the first of them, with the batch size that Dorm chooses
    elastic_mlp  a network that is resized while it trains, by `dorm.elastic`
    elastic_cocoa  logistic regression by CoCoA that asks for fewer workers when these suffice
    torch_mlp    a PyTorch program for the engine `torchrun`, in one file
    starters/    further programs to copy, each in one file: Lightning, transformers, scikit-learn, a shell script

    learning/    training, as all three do it: the loop, data, checkpoints, command line
    ring/        the ring that sums over workers;  served/: parameter servers and their workers
    worker/      what any worker needs: the contract with Dorm, signals, progress, exit codes

Copy a program and its spec to write your own; the packages are the machinery that it imports. They need only Python and NumPy,
except for `logistic_mpi` (mpi4py), `elastic_mlp` and `elastic_cocoa` (dorm-elastic), and `torch_mlp` (PyTorch). They run under
any cluster manager that keeps the contract; those of the engine `plain` run standalone, too.

**What makes a resize harmless.**  The samples of a step are a function of seed and step.  They are cut into 24 shards whose
number never changes.  A worker computes a contiguous run of them, and a sum travels through the workers in rank order; each
adds its shards one by one.  So the additions happen in the same order for any number of workers, and the loss after K steps
does not depend on how often, and to what size, the app was resized.

**What ends a worker.**  Exit code 0: all steps are done.  143: stopped by SIGTERM or SIGINT, its work saved (or nothing to
save yet).  Others are failures with one line on stderr; `worker.failures` lists them.  When any worker is asked to stop, the
flag travels with the sum, so that all stop after the same step.
"""
