"""What a worker runs: synchronous data-parallel training.

By default it is a ring all-reduce of made-up gradients over TCP. That needs only the standard
library and NumPy, and imports nothing from the rest of Patchlight, so that this folder alone can
be mounted into a container. Kept to Python 3.9, which worker images may still carry.

Real models (``torch_ddp``) need PyTorch, and ``patchlight.testbed.graphs`` for their layers.
"""
