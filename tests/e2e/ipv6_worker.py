"""What runs in the containers of `ipv6_machine.py`: `ipv6_worker.py greets|trains`."""

from __future__ import annotations

import os
import socket
import sys
import time


def greets() -> None:
    """Rank 0 listens at its entry of DORM_PEERS, as it stands there, and rank 1 connects to it."""
    rank = int(os.environ["DORM_RANK"])
    host, _, port = os.environ["DORM_PEERS"].split(",")[0].rpartition(":")
    assert host == "[::1]"
    if rank == 0:
        with socket.create_server((host.strip("[]"), int(port)), family=socket.AF_INET6) as listener:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(5) == b"hello"
        return
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port))) as connection:
                connection.sendall(b"hello")
            return
        except ConnectionRefusedError:  # It does not listen yet.
            time.sleep(0.05)


def trains() -> None:
    import numpy as np

    from dorm import elastic

    weights = np.zeros(4)
    with elastic.join(state={"weights": weights}) as job:
        for step in job.steps(np.ones((64, 4)), batch=32, epochs=2):
            (total,) = step.sum_over(lambda samples: [np.full(4, float(len(samples)))])
            assert total[0] == step.batch
            weights += total


if __name__ == "__main__":
    {"greets": greets, "trains": trains}[sys.argv[1]]()
