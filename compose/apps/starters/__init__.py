"""Programs to begin with, each in one file that imports no other sample: copy one and change it.

    lightning_digits   PyTorch Lightning: a `Trainer` with DDP, a callback that reports and saves
    transformers_text  Hugging Face's `Trainer` on a small language model, from a configuration: nothing is downloaded
    sklearn_search     scikit-learn: a search over settings, whose candidates the containers share

A package of its own because each program is alone: one file to copy.

`shell_primes.yaml` is a shell script, inside its spec.  For plain PyTorch with DistributedDataParallel,
`compose.apps.torch_mlp` is such a file.  README.md explains how to run each, and what makes it resizable.
"""
