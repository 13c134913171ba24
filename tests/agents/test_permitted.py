"""What a worker may not ask for."""

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from patchlight.agents.errors import AgentError, BadRequest, Forbidden
from patchlight.agents.workers.limits import limits_of, memory_share, permitted
from patchlight.testbed.jobs import CommandTask
from patchlight.testbed.lab.model import Lab, Nic, Server, default_mac
from patchlight.testbed.lab.rules import WorkerPolicy
from patchlight.testbed.wire.worker_api import TorchTask, WorkerSpec


def spec(
    source: str,
    target: str = "/data",
    checkpoint: str | None = None,
    *,
    read_only: bool = True,
) -> WorkerSpec:
    return WorkerSpec.model_validate(
        {
            **{
                "id": "w",
                "job": "j",
                "rank": 0,
                "nic": "nic0",
                "checkpoint": checkpoint,
            },
            "ring": [{"rank": 0, "address": "10.0.0.1", "port": 29500}],
            "task": {
                "trainer": "command",
                "command": ["true"],
                "mounts": [
                    {
                        "source": source,
                        "target": target,
                        "read_only": read_only,
                    }
                ],
            },
        }
    )


def of_a_model(data: str) -> WorkerSpec:
    task = {
        "trainer": "torch",
        "model": "vgg16",
        "iterations": 1,
        "data": data,
    }
    return WorkerSpec.model_validate(
        {**spec("/srv").model_dump(mode="json"), "task": task}
    )


def allowing(*mounts: object) -> WorkerPolicy:
    return WorkerPolicy(mounts=tuple(map(str, mounts)))


@pytest.mark.parametrize(
    "source",
    [
        "/",
        "//",
        "/etc",
        "//etc/ssl",
        "/proc/1",
        "/sys",
        "/dev/mem",
        "/run",
        "/var/run/docker.sock",
        "/var",
        "/var/lib/docker/volumes",
    ],
)
def test_what_belongs_to_the_server_is_refused(
    source: str, tmp_path: Path
) -> None:
    # What no lab allows, this one does not.
    policy = allowing(f"{source}:rw", f"{tmp_path}:rw")
    with pytest.raises(Forbidden, match="closed to workers"):
        permitted(spec(source), policy)
    with pytest.raises(Forbidden, match="closed to workers"):
        permitted(spec(str(tmp_path), checkpoint=source), policy)
    link = tmp_path / "link"
    link.symlink_to(source)
    with pytest.raises(Forbidden, match="closed to workers"):
        permitted(spec(str(link)), policy)


@pytest.mark.parametrize(
    "source", ["/root", "/usr", "/lib", "/home", "/srv/data"]
)
def test_without_a_word_in_the_lab_file_nothing_is_mounted(
    source: str,
) -> None:
    for asked in (
        spec(source),
        of_a_model(source),
        spec_without_mounts(source),
    ):
        with pytest.raises(
            Forbidden, match=r"does not allow workers to (see|write to) it"
        ) as raised:
            permitted(asked, WorkerPolicy())
        assert "allowed folders: none" in str(raised.value.hint)
        assert f"workers: {{mounts: ['{source}" in str(raised.value.hint)


def spec_without_mounts(checkpoint: str) -> WorkerSpec:
    asked = spec("/srv", checkpoint=checkpoint)
    return asked.model_copy(
        update={"task": asked.task.model_copy(update={"mounts": []})}
    )


def test_samples_of_a_model_are_files_like_others(tmp_path: Path) -> None:
    policy = allowing(tmp_path)
    permitted(of_a_model(str(tmp_path)), policy)
    with pytest.raises(Forbidden, match="closed to workers"):
        permitted(of_a_model("/etc/ssl"), policy)
    with pytest.raises(
        BadRequest, match="is unusable on this server: No such file"
    ):
        permitted(of_a_model(str(tmp_path / "none")), policy)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/proc",
        "/run/worker",
        "/data/../run",
        "//opt/patchlight",
        "/etc/hosts",
    ],
)
def test_what_is_made_for_a_worker_is_not_hidden(
    target: str, tmp_path: Path
) -> None:
    with pytest.raises(BadRequest, match="cannot mount at"):
        permitted(spec(str(tmp_path), target), allowing(tmp_path))


def test_data_may_be_mounted_where_it_is(tmp_path: Path) -> None:
    policy = allowing(f"{tmp_path}:rw")
    permitted(
        spec(str(tmp_path), "/opt/data", checkpoint=str(tmp_path)), policy
    )
    permitted(spec(str(tmp_path), checkpoint=str(tmp_path / "made")), policy)
    for lacking in (
        spec(str(tmp_path / "none")),
        spec_without_mounts(str(tmp_path / "a" / "b")),
    ):
        with pytest.raises(
            BadRequest, match="is unusable on this server: No such file"
        ):
            permitted(lacking, policy)


def test_paths_that_lead_nowhere_are_refused_and_no_bug(
    tmp_path: Path,
) -> None:
    loop = tmp_path / "loop"
    closed = tmp_path / "closed"
    loop.symlink_to(loop)
    # Which not even root may follow in some containers.
    closed.symlink_to("/proc/1/root")
    policy = allowing(f"{tmp_path}:rw")
    for path in (
        loop / "in",
        tmp_path / ("x" * 300) / "in",
        closed,
        Path("/proc/1/root"),
    ):
        for asked in (
            spec(str(path)),
            spec_without_mounts(str(path)),
            of_a_model(str(path)),
        ):
            with pytest.raises(AgentError) as raised:
                permitted(asked, policy)
            assert "\n" not in raised.value.message


def test_the_lab_says_which_folders_workers_may_see(tmp_path: Path) -> None:
    data = tmp_path / "data"
    other = tmp_path / "other"
    for folder in (data / "sets", other):
        folder.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(data)
    policy = allowing(f"{link}:rw")
    for allowed in (data, data / "sets", link / "sets"):
        permitted(spec(str(allowed), checkpoint=str(data)), policy)
    for refused in (other, tmp_path, data / ".." / "other"):
        with pytest.raises(
            Forbidden, match="does not allow workers to see it"
        ) as raised:
            permitted(spec(str(refused)), policy)
        assert f"allowed folders: {link}:rw" in str(raised.value.hint)
    with pytest.raises(
        Forbidden, match="does not allow workers to write to it"
    ):
        permitted(spec(str(data), checkpoint=str(other)), policy)


def test_workers_write_only_where_the_lab_says_so(tmp_path: Path) -> None:
    inner = tmp_path / "saved" / "kept"
    inner.mkdir(parents=True)
    policy = allowing(tmp_path, f"{tmp_path}/saved:rw", inner)
    assert permitted(spec(str(tmp_path)), policy)
    beside = tmp_path / "saved" / "mine"
    beside.mkdir()
    permitted(
        spec(str(beside), read_only=False, checkpoint=str(beside)), policy
    )
    # The last would let it write to what is only read inside.
    for refused in (tmp_path, inner, tmp_path / "saved"):
        for asked in (
            spec(str(refused), read_only=False),
            spec_without_mounts(str(refused)),
        ):
            with pytest.raises(
                Forbidden, match="does not allow workers to write to it"
            ) as raised:
                permitted(asked, policy)
            assert f"['{refused}:rw']"[:50] in str(raised.value.hint)


def test_a_link_that_is_turned_round_after_the_look_leads_nowhere_else(
    tmp_path: Path,
) -> None:
    good = tmp_path / "good"
    link = tmp_path / "link"
    good.mkdir()
    link.symlink_to(good)
    policy = allowing(f"{tmp_path}:rw")
    asked = permitted(spec(str(link), checkpoint=str(link / "new")), policy)
    model = permitted(of_a_model(str(link)), policy)
    assert isinstance(asked.task, CommandTask)
    assert isinstance(model.task, TorchTask)
    assert asked.task.mounts[0].source == model.task.data == str(good)
    assert asked.checkpoint == str(good / "new")


def test_the_lab_says_which_images_and_how_much_of_a_server(
    tmp_path: Path,
) -> None:
    asked = spec(str(tmp_path))
    assert isinstance(asked.task, CommandTask)
    task = asked.task.model_copy(update={"image": "evil/miner:1"})
    asked = asked.model_copy(
        update={"task": task, "memory_bytes": 2**34, "cpus": 8.0}
    )
    mounts = (str(tmp_path),)
    permitted(asked, WorkerPolicy(mounts=mounts))
    permitted(
        asked,
        WorkerPolicy(("a", "evil/*"), mounts, memory_bytes=2**34, cpus=8),
    )
    for policy, words in (
        (
            WorkerPolicy(images=("pytorch/*",)),
            "the image evil/miner:1, which the lab does not allow",
        ),
        (WorkerPolicy(images=()), "which the lab does not allow"),
        (
            WorkerPolicy(memory_bytes=2**33),
            "17.18GB of memory: the lab allows 8.59GB",
        ),
        (WorkerPolicy(cpus=4), "requests 8 CPUs: the lab allows 4"),
    ):
        with pytest.raises(Forbidden, match=words):
            permitted(asked, policy)
    # Without a word of its own a worker gets what the lab allows at most.
    plain = spec(str(tmp_path))
    permitted(plain, WorkerPolicy((), mounts, memory_bytes=2**33, cpus=4))
    limits = limits_of(
        plain, None, 2**40, WorkerPolicy(memory_bytes=2**33, cpus=4)
    )
    assert (limits.memory_bytes, limits.processes, limits.cpus) == (
        2**33,
        1024,
        4,
    )
    assert limits_of(asked, None, 2**40, WorkerPolicy()).memory_bytes == 2**34
    assert (
        limits_of(plain, None, 2**40, WorkerPolicy(processes=99)).processes
        == 99
    )


def test_servers_on_one_machine_share_its_memory() -> None:
    def lab(servers: int, nics: int, management: str) -> Lab:
        addresses = [IPv4Address(f"10.0.0.{n}") for n in range(1, 1 + nics)]
        network = tuple(Nic(f"nic{n}", n, default_mac(n)) for n in addresses)
        names = [f"server{n}" for n in range(servers)]
        made = tuple(
            Server(each, management.format(each), nics=network)
            for each in names
        )
        return Lab("shared", IPv4Network("10.0.0.0/24"), servers=made)

    memory = 24 * 2**30
    for servers, nics, management, share in (
        (1, 8, "10.0.0.1:8471", memory // 8),
        (6, 1, "10.0.0.1:8471", memory),
        (6, 1, "unix:/run/{}.sock", memory // 6),
        (3, 2, "unix:/run/{}.sock", memory // 6),
        (256, 1, "unix:/run/{}.sock", 2 * 2**30),
    ):
        found = lab(servers, nics, management)
        assert memory_share(found, found.servers[0], memory) == share, (
            servers,
            nics,
            management,
        )
    small = lab(8, 1, "unix:/run/{}.sock")
    assert memory_share(small, small.servers[0], 2**30) == 2**30
