"""What can go wrong inside a worker. Its own root: a worker image holds no other package."""

from __future__ import annotations


class TrainingError(Exception):
    """The worker cannot go on. The message says at what, with whom, and what came back."""


class RingError(TrainingError):
    """The ring could not be joined, or a neighbour in it was lost."""


class WrongSum(TrainingError):
    """An all-reduce gave something else than the sum of all gradients."""


class Stopped(BaseException):
    """The worker was told to stop; not an error, so no ``except Exception`` swallows it."""
