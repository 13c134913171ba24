"""Workers on virtual functions of a NIC that QEMU emulates (igb), in tests/in-vm.sh."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.nics.moving import find_access, read_nic
from patchlight.agents.nics.state import NicAccess, NicState
from patchlight.testbed.lab.model import default_mac
from patchlight.testbed.linux import namespaces
from tests.support.agent_bench import Bench, ip, with_nics
from tests.support.waiting import wait_until
from tests.support.worker_jobs import everything_is_back, run_job

pytestmark = [pytest.mark.root, pytest.mark.kernel]

# The MACs that tests/in-vm.sh gives the NIC and its peer. A machine's own NICs have others.
PORT = "02:4c:ff:00:00:01"
WIRE = "02:4c:ff:00:00:02"


def interface_with(mac: str) -> str | None:
    found = Path("/sys/class/net").glob("*/address")
    return next(
        (
            each.parent.name
            for each in found
            if each.read_text().strip() == mac
        ),
        None,
    )


def plugged(bench: Bench, tag: int | None) -> tuple[str, list[str]]:
    """Have the NIC and two virtual functions in the server's namespace, joined to the bench's
    bridge; its interface, and theirs by number."""
    port = interface_with(PORT)
    wire = interface_with(WIRE)
    if port is None or wire is None:
        pytest.skip(
            "no emulated igb NIC found: tests/in-vm.sh has one where QEMU is 8 or newer"
        )
    device = Path("/sys/class/net", port, "device").resolve()
    server = bench.namespace("server1")
    fabric = bench.namespace("fabric")
    ip("link", "set", port, "netns", server, "name", "port0")
    ip("-n", server, "link", "set", "port0", "up")
    for count in "02":
        (device / "sriov_numvfs").write_text(count)

    def interfaces() -> list[str]:
        folders = (device / f"virtfn{number}/net" for number in range(2))
        return [each.name for folder in folders for each in folder.glob("*")]

    functions = wait_until(
        lambda: found if len(found := interfaces()) == 2 else [],
        "two functions",
    )
    for each in functions:
        ip("link", "set", each, "netns", server)
    ip("link", "set", wire, "netns", fabric)
    ip("-n", fabric, "link", "set", wire, "up")
    if tag is not None:
        vlan = f"link add link {wire} name tagged type vlan id {tag}"
        ip("-n", fabric, *vlan.split())
        ip("-n", fabric, "link", "set", wire := "tagged", "up")
    ip("-n", fabric, "link", "set", wire, "master", "br0")
    return "port0", functions


@pytest.mark.parametrize("keys", [{"lab_mac": True, "vlan": 7}, {}])
def test_a_worker_gets_the_first_free_function_and_gives_it_back_whole(
    make_bench: Callable[[int], Bench], keys: dict[str, Any]
) -> None:
    bench = make_bench(1)
    tag = keys.get("vlan")
    port, functions = plugged(bench, tag)
    (host,) = with_nics(bench, interface=port, mode="sriov", **keys).hosts
    home = namespaces.namespace_path(bench.namespace("server1"))

    def first_free() -> NicState:
        return namespaces.inside(home, lambda: read_nic(find_access(host.nic)))

    before = first_free()
    assert (before.interface, before.mode) == (functions[0], "sriov")
    (agent,) = run_job(bench, "process", 1, iterations=10_000)
    worker = namespaces.namespace_path(bench.namespace("server1.w-job-0"))
    given = namespaces.inside(
        worker, lambda: read_nic(NicAccess("physical", functions[0]))
    )
    mac = default_mac(host.nic.address) if keys else before.mac
    assert (given.mac, given.addresses) == (
        mac,
        ((str(host.nic.address), 24),),
    )
    of_port = ip("-n", bench.namespace("server1"), "link", "show", port)
    assert f"vf 0     link/ether {mac}" in of_port
    assert ("vlan 7" in of_port) == (tag == 7)
    # Through the switch port that is in this VLAN, or in none.
    wait_until(lambda: bench.reaches(1), "an answer from the worker")
    assert first_free().interface == functions[1]
    (told,) = agent.client.get("/status").json()["nics"]
    assert (told["state"], told["mode"]) == ("leased", "sriov")
    agent.kill()
    agent.start()
    agent.client.delete("/workers/job-0")
    assert everything_is_back(agent, "job-0")
    assert first_free() == before
