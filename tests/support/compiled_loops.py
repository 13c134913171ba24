"""Has Numba compile all loops once, before a test has to within its limit of time.

``python -m tests.support.compiled_loops``. Numba keeps what it compiles beside the source.
"""

import tempfile

import numpy as np
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.emulation.learning.episode_arrays import (
    BlockChoices,
    BlockTable,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs import builtin_graph


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
    table = BlockTable(Workloads([builtin_graph("alexnet")]).ramp, (1, 2))
    left_s = np.zeros((1, table.servers))
    wanted = np.ones((1, 2), bool)
    first = table.first_free(left_s)
    table.taken(wanted, first)
    BlockChoices(table, 2).of(left_s, first, wanted)


if __name__ == "__main__":
    main()
