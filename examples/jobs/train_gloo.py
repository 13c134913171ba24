"""Data-parallel training with PyTorch and Gloo, as one writes it for torchrun, nothing else.

torchrun --nproc-per-node 2 examples/jobs/train_gloo.py --steps 5
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--width", type=int, default=64)  # 4 width² bytes of gradients
given = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.parallel.DistributedDataParallel(nn.Linear(given.width, given.width))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(given.steps):
    began = time.monotonic()
    inputs = torch.randn(32, given.width)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
    took = time.monotonic() - began
    print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f} in {took:.3f} s", flush=True)
dist.destroy_process_group()
# Threads of Gloo that end late would abort Python's finalization
# (https://github.com/pytorch/pytorch/issues/190489).
sys.stdout.flush()
os._exit(0)
