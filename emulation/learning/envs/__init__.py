"""Gymnasium environments; importing this package registers them."""

from patchlight.emulation.learning.envs.registry import register_all

register_all()
