"""Hypothesis on machines that are busy with other tests: slow is not wrong."""

from hypothesis import settings

settings.register_profile("patchlight", deadline=None)
settings.load_profile("patchlight")
