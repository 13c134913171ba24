"""Makes a disk with the layer of an agent, for virtual servers: what a push would install there.

    python -m patchlight.deploy.layer_image FOLDER

makes it in FOLDER if it is not there, and has the link FOLDER/layer lead to it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from patchlight.deploy.bundle import FromHere, here
from patchlight.deploy.remote_helper.layers import Layers
from patchlight.deploy.remote_helper.places import (
    Line,
    Places,
    RequestRefused,
    point,
)
from patchlight.testbed.errors import PatchlightError, reason

_MARGIN = 1.3  # what a file system needs beside the files
_LEAST_BYTES = 16 << 20


def layer_image(folder: Path) -> Path:
    """The image of today's layer; ``PatchlightError`` or ``RequestRefused`` if it fails."""
    part = FromHere(lambda text: None).part(here(), "agent")
    image = folder / f"layer-{part.layer}.ext4"
    if image.exists():
        return image
    # Nothing comes, so it is not taken for a connection that ends.
    reading, writing = os.pipe()
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        os.fdopen(reading, "rb") as incoming,
        os.fdopen(writing, "wb") as outgoing,
    ):
        places = Places("image", Path(scratch))
        places.files.mkdir(parents=True)
        for file in part.required.values():
            (places.files / file.sha256).symlink_to(file.path)
        hashes = {name: file.sha256 for name, file in part.required.items()}
        layer, _ = Layers(places, Line(incoming, outgoing)).make(
            part.layer, hashes, part.installer.sha256
        )
        size = sum(path.stat().st_blocks * 512 for path in layer.rglob("*"))
        made = Path(scratch) / "image"
        make = [
            "mke2fs",
            "-q",
            "-t",
            "ext4",
            "-O",
            "^has_journal",
            "-E",
            "root_owner=0:0",
        ]
        make += [
            "-d",
            str(layer.parent),
            str(made),
            f"{int(size * _MARGIN + _LEAST_BYTES) >> 10}k",
        ]
        subprocess.run(
            make,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        made.rename(image)
    return image


if __name__ == "__main__":
    try:
        point(Path(sys.argv[1], "layer"), layer_image(Path(sys.argv[1])).name)
    except (
        PatchlightError,
        RequestRefused,
        OSError,
        subprocess.CalledProcessError,
    ) as error:
        sys.exit(
            f"each push will also install the agents' packages: {reason(error)}"
        )
