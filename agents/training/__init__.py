"""What a worker runs: synchronous data-parallel training with ring all-reduce over TCP.

Needs only the standard library and NumPy, and imports nothing from the rest of Patchlight,
so that this folder alone can be mounted into a container. Kept to Python 3.9, which worker
images may still carry.
"""
