"""A small network in PyTorch with BatchNorm, in batches of which the last of an epoch suffices for few workers.

Argument: epochs.  After the first ones it is slow until a file `go` lies in the shared folder, so that it does not end before
a test is done.  It prints the weights and statistics at the end, and what it saw on the way.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

import torch

from dorm import elastic

torch.manual_seed(0)
torch.set_num_threads(1)
x, y = torch.randn(51, 8), torch.randint(0, 3, (51,))
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
go = Path(os.environ["DORM_CHECKPOINT_DIR"]) / "go"
fewest, shares, losses = len(x), set(), []

with elastic.join(state={"model": model, "optimizer": optimizer}) as job:
    for step in job.steps(len(x), batch=8, epochs=int(sys.argv[1])):
        fewest = min(fewest, len(step.indices))
        shares.add(step.share)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[step.indices]), y[step.indices])
        loss.backward()
        mean = loss.detach()
        step.allreduce([mean, *(p.grad for p in model.parameters())])
        optimizer.step()
        losses.append(mean.item())
        step.report(loss=mean.item())
        time.sleep(0.5 if step.epoch > 2 and not go.exists() else 0.02)
state = {name: value.double().flatten().tolist() for name, value in model.state_dict().items()}
finite = all(map(math.isfinite, losses))
print(json.dumps({"state": state, "fewest": fewest, "shares": sorted(shares), "finite": finite}), flush=True)
