"""What all tests of learning share."""

import sys

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Networks are small: several threads of PyTorch on a busy machine wait for each other."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
