"""Images of workers are written as ``docker save`` does, without an engine."""

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

from patchlight.deploy.image_file import image_ids, write_image
from patchlight.testbed.linux import deploy_file

IMAGE = "patchlight-test-file:1"


def root_file_system(folder: Path) -> Path:
    path = folder / "root.tar"
    with tarfile.open(path, "w") as tar:
        tar.add(__file__, "etc/here")
    return path


def content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def test_it_names_its_image_and_has_its_files(tmp_path: Path) -> None:
    root, file = root_file_system(tmp_path), tmp_path / "image.tar"
    write_image(IMAGE, root, file, {"patchlight.recipe": "1"})
    with tarfile.open(file) as tar:
        (entry,) = json.loads(content(tar, "manifest.json"))
        config = json.loads(content(tar, entry["Config"]))
        number = hashlib.sha256(content(tar, entry["Config"])).hexdigest()
        (layer,) = [content(tar, name) for name in entry["Layers"]]
    assert entry["RepoTags"] == [IMAGE]
    assert config["config"]["Labels"] == {"patchlight.recipe": "1"}
    assert gzip.decompress(layer) == root.read_bytes()
    digest = hashlib.sha256(root.read_bytes()).hexdigest()
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert image_ids(file) == {f"sha256:{number}"}
    assert image_ids(root) == set()
    again = tmp_path / "again.tar"
    write_image(IMAGE, root, again, {"patchlight.recipe": "1"})
    assert again.read_bytes() == file.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"root.tar", "image.tar", "again.tar"}


def test_without_the_files_it_leaves_nothing(tmp_path: Path) -> None:
    script, missing = deploy_file("image_file.py"), tmp_path / "missing.tar"
    command = [sys.executable, "-I", str(script), IMAGE, str(missing), str(tmp_path / "image.tar")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert str(missing) in ended.stderr
    assert list(tmp_path.iterdir()) == []
