"""What the Linux kernel and its services offer, wrapped in functions without a state."""

from pathlib import Path


def deploy_file(name: str) -> Path:
    """The full path of a file of ``deploy``, in a checkout and in an installed Patchlight."""
    return Path(__file__).resolve().parents[2] / "deploy" / name
