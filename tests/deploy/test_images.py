"""Images for servers: what is in them, and the files that they are carried in."""

import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from patchlight.deploy.image_file import image_ids, write_image
from patchlight.testbed.linux import deploy_file, docker_engine
from tests.support.remote_helpers import remote_helper, sha256_of, small_image

IMAGE = "patchlight-test-deploy:1"


@pytest.mark.docker
def test_an_image_is_loaded_once_and_goes_with_the_rest(
    docker_host: str, tmp_path: Path
) -> None:
    content = small_image(tmp_path, IMAGE)
    with remote_helper(tmp_path / "root", DOCKER_HOST=docker_host) as far:
        try:
            far.put(content)
            far.ask("load_image", sha256=sha256_of(content), image=IMAGE)
            assert docker_engine.has_image(IMAGE, docker_host)
            found = far.ask("look", image=IMAGE)
            (number,) = image_ids(tmp_path / "image.tar")
            assert (found["image"], found["files"]) == (
                [number, sha256_of(content)],
                [],
            )
        finally:
            far.ask("remove")
        assert not docker_engine.has_image(IMAGE, docker_host)


@pytest.mark.docker
def test_an_image_that_came_otherwise_is_known_by_its_id(
    docker_host: str, tmp_path: Path
) -> None:
    content = small_image(tmp_path, IMAGE)
    docker_engine.ask("POST", "/images/load", docker_host, body=[content])
    with remote_helper(tmp_path / "root", DOCKER_HOST=docker_host) as far:
        assert set(far.ask("look", image=IMAGE)["image"]) == image_ids(
            tmp_path / "image.tar"
        )
        far.ask("remove")
    assert (
        docker_engine.ask("DELETE", f"/images/{IMAGE}", docker_host).status
        == 200
    )


@pytest.mark.docker
def test_a_file_without_that_image_is_refused(
    docker_host: str, tmp_path: Path
) -> None:
    content = small_image(tmp_path, "patchlight-test-other:1")
    with remote_helper(tmp_path / "root", DOCKER_HOST=docker_host) as far:
        far.put(content)
        told = far.tell("load_image", sha256=sha256_of(content), image=IMAGE)
        docker_engine.ask(
            "DELETE", "/images/patchlight-test-other:1", docker_host
        )
        far.ask("remove")
    assert f"got no {IMAGE} from the file" in told["error"]


def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    with remote_helper(
        tmp_path / "root", DOCKER_HOST=f"unix://{tmp_path}/none.sock"
    ) as far:
        far.put(b"image")
        told = far.tell("load_image", sha256=sha256_of(b"image"), image=IMAGE)
        assert "giving the image to the Docker engine" in told["error"]
        assert "leave out --image-file" in told["hint"]
        assert far.ask("look", image=IMAGE)["image"] == []
        far.ask("remove")


SAVED_IMAGE = "patchlight-test-file:1"


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
    root = root_file_system(tmp_path)
    file = tmp_path / "image.tar"
    write_image(SAVED_IMAGE, root, file, {"patchlight.recipe": "1"})
    with tarfile.open(file) as tar:
        (entry,) = json.loads(content(tar, "manifest.json"))
        config = json.loads(content(tar, entry["Config"]))
        number = hashlib.sha256(content(tar, entry["Config"])).hexdigest()
        (layer,) = [content(tar, name) for name in entry["Layers"]]
    assert entry["RepoTags"] == [SAVED_IMAGE]
    assert config["config"]["Labels"] == {"patchlight.recipe": "1"}
    assert gzip.decompress(layer) == root.read_bytes()
    digest = hashlib.sha256(root.read_bytes()).hexdigest()
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert image_ids(file) == {f"sha256:{number}"}
    assert image_ids(root) == set()
    again = tmp_path / "again.tar"
    write_image(SAVED_IMAGE, root, again, {"patchlight.recipe": "1"})
    assert again.read_bytes() == file.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {
        "root.tar",
        "image.tar",
        "again.tar",
    }


def test_without_the_files_it_leaves_nothing(tmp_path: Path) -> None:
    script = deploy_file("image_file.py")
    missing = tmp_path / "missing.tar"
    command = [
        sys.executable,
        "-I",
        str(script),
        SAVED_IMAGE,
        str(missing),
        str(tmp_path / "image.tar"),
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert str(missing) in ended.stderr
    assert list(tmp_path.iterdir()) == []
