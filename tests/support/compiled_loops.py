"""Has Numba compile all loops once, before a test has to within its limit of time.

``python -m tests.support.compiled_loops``. Numba keeps what it compiles beside the source.
"""

import tempfile

from click.testing import CliRunner

from patchlight.cli.main import cli


def main() -> None:
    """Compile them."""
    with tempfile.TemporaryDirectory() as folder:
        network = [
            "--jobs",
            "2",
            "--network",
            "ideal:nodes=16",
            "--output",
            folder,
        ]
        done = CliRunner().invoke(
            cli, ["experiment", "architectures", *network]
        )
        assert done.exit_code == 0, done.output


if __name__ == "__main__":
    main()
