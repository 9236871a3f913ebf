"""Transcripts of the leader: records in, `Ready` out, as text that reads as documentation.

Each `.txt` file here is one story.  It consists of blocks, in the style of the test data of etcd's raft library:

    # Comments say what to look at.
    record                          a command, and the lines that belong to it
    AppSubmitted {spec: {name: a, command: [work], demand: {cpu: 1}, n_max: 2}}
    ----
    3 AppSubmitted applied          what happens, until an empty line

The commands:

    record        folds records, one a line: a kind and its fields in YAML.  `node`, `from` or `by` is its sender
    started APP   its node reports the start of each container of the last released generation; `started APP 0 2` of two slots
    exited APP    likewise their exits, with fields of ContainerExited below it, such as `exit_code: 1`
    step          one `Leader.step`, shown and not carried out
    carry out     carries out what the last step said: publishes its round, or computes the allocation and publishes that
    compute       computes the allocation that the last step asked for, and publishes nothing yet
    publish       publishes that round, whatever has come before it meanwhile
    settle        steps and carries out until nothing follows, and shows each round
    wait 5s       time passes, by both clocks
    silent NODE   the failure detector has not heard the node since now; `heard NODE` ends that
    lead          a new epoch, of a leader that takes over
    state         the apps and their containers, and nodes with something to say about them

Apps are named by their names, and fields that say nothing here (ports, the solver) are left out.  Times in records and facts
are seconds since the start of the story.  `python -m tests.core.transcripts rewrite` writes what happens now into all files:
read the difference before you commit it.
"""
