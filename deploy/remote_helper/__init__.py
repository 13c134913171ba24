"""The remote helper of a deployment: what runs as root on a server while somebody deploys to it.

It is sent there over SSH with each connection, so it is always the version of who deploys. It
needs nothing but Python's own library and ``testbed/linux/docker_engine.py``, which is sent along.
"""
