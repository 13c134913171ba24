"""Wraps the Linux kernel and its services in stateless functions."""

import shlex
from pathlib import Path


def deploy_file(name: str) -> Path:
    """The full path of a file of ``deploy``, in a checkout or an installation."""
    return Path(__file__).resolve().parents[2] / "deploy" / name


def quoted_deploy_file(name: str) -> str:
    """That path, quoted for a shell command."""
    return shlex.quote(str(deploy_file(name)))
