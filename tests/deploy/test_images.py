"""Images of workers are given to a server's Docker engine, and taken out again."""

from pathlib import Path

import pytest

from patchlight.deploy.image_file import image_ids
from patchlight.testbed.linux import docker_engine
from tests.support.remote_helpers import remote_helper, sha256_of, small_image

IMAGE = "patchlight-test-deploy:1"


@pytest.mark.docker
def test_an_image_is_loaded_once_and_goes_with_the_rest(docker_host: str, tmp_path: Path) -> None:
    content = small_image(tmp_path, IMAGE)
    with remote_helper(tmp_path / "root", DOCKER_HOST=docker_host) as far:
        try:
            far.put(content)
            far.ask("load_image", sha256=sha256_of(content), image=IMAGE)
            assert docker_engine.has_image(IMAGE, docker_host)
            found = far.ask("look", image=IMAGE)
            (number,) = image_ids(tmp_path / "image.tar")
            assert (found["image"], found["files"]) == ([number, sha256_of(content)], [])
        finally:
            far.ask("remove")
        assert not docker_engine.has_image(IMAGE, docker_host)


@pytest.mark.docker
def test_an_image_that_came_otherwise_is_known_by_its_id(docker_host: str, tmp_path: Path) -> None:
    content = small_image(tmp_path, IMAGE)
    docker_engine.ask("POST", "/images/load", docker_host, body=[content])
    with remote_helper(tmp_path / "root", DOCKER_HOST=docker_host) as far:
        assert set(far.ask("look", image=IMAGE)["image"]) == image_ids(tmp_path / "image.tar")
        far.ask("remove")
    assert docker_engine.ask("DELETE", f"/images/{IMAGE}", docker_host).status == 200


@pytest.mark.docker
def test_a_file_without_that_image_is_refused(docker_host: str, tmp_path: Path) -> None:
    content = small_image(tmp_path, "patchlight-test-other:1")
    with remote_helper(tmp_path / "root", DOCKER_HOST=docker_host) as far:
        far.put(content)
        told = far.tell("load_image", sha256=sha256_of(content), image=IMAGE)
        docker_engine.ask("DELETE", "/images/patchlight-test-other:1", docker_host)
        far.ask("remove")
    assert f"got no {IMAGE} from the file" in told["error"]


def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    with remote_helper(tmp_path / "root", DOCKER_HOST=f"unix://{tmp_path}/none.sock") as far:
        far.put(b"image")
        told = far.tell("load_image", sha256=sha256_of(b"image"), image=IMAGE)
        assert "giving the image to the Docker engine" in told["error"]
        assert "leave out --image-file" in told["hint"]
        assert far.ask("look", image=IMAGE)["image"] == []
        far.ask("remove")
