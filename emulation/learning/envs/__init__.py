"""The learning environments, which ``gymnasium.make`` knows once this package is imported."""

from patchlight.emulation.learning.envs.registry import register_all

register_all()
