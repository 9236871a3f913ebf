"""Live resizing, measured: `dorm bench elastic`.

    elastic        runs the parts one after the other, and gives the figures;  plot: convergence as a picture
    pauses         live, and by checkpoint and restart;  peers: torchrun's elastic agent and torchft
    sharing        through the control plane: pauses, and what a partition costs its app
    convergence    rounds and time to a target: uni-tasks, micro-tasks, resized runs
    balance        one worker at half speed
    schedules      random resizes, deaths and freezes in virtual time, and how often each sample was used

    workers        the workers of a job as processes, with announcements as an agent makes them
    training       the workers' program;  peer_training: the same under torchrun and torchft
    steps          what workers recorded of their steps, and the pauses between them
    data           the data that they train on
    group          a group of members in virtual time, which the tests of `dorm.elastic` drive too

Start with `elastic`.  The workers' programs import only NumPy and `dorm.elastic`, or PyTorch.
"""
