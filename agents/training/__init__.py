"""Trains on one worker: synchronous data-parallel training.

The default is a ring all-reduce of synthetic gradients over TCP. It needs only Python 3.9, the
standard library and NumPy, so this folder alone can be mounted into a container. ``torch_ddp``
trains real models; it needs PyTorch, PyYAML and ``patchlight.testbed.graphs``.
"""
