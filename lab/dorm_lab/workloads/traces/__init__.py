"""Real traces as workloads: each row becomes an app, submitted when its job was, with the work that its job did.

    rows        lines of a file and their values, with errors that name the row
    jobs        from jobs to apps: order, window, sample, bounds, names
    philly      Microsoft's Philly, 2017
    alibaba     Alibaba's GPU cluster, 2023
    swf         the Standard Workload Format of the Parallel Workloads Archive
    table       any CSV file, with a mapping of its columns
    pollux      the workloads of Pollux's simulator, with the speeds of its profiles

An invalid row is skipped and reported with its line and the reason; `strict` refuses the file instead.  Valid rows outside the
requested part are cut, so rows = apps + skipped + cut.
"""
