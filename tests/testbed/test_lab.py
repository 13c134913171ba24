"""Names of hosts and devices."""

from ipaddress import IPv4Address

import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import single
from patchlight.testbed.lab.model import Endpoint, Lab, default_mac
from patchlight.testbed.labfile.reader import load_lab, parse_lab


@pytest.fixture(scope="module")
def ofc2022() -> Lab:
    return load_lab("ofc2022")


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("server1.gpu0", "server1.gpu0"),
        ("server1.nic1", "server1.gpu1"),
        ("gpu3", "server2.gpu3"),
        ("nic3", "server2.gpu3"),
        ("server4", "server4.gpu5"),
    ],
)
def test_a_host_answers_to_every_name_that_is_clear(
    ofc2022: Lab, name: str, host: str
) -> None:
    assert ofc2022.host(name).name == host


def test_a_server_with_two_hosts_is_not_a_host(ofc2022: Lab) -> None:
    with pytest.raises(BadInput, match="no host called 'server1'"):
        ofc2022.host("server1")


def test_a_name_that_two_servers_use_is_not_clear() -> None:
    lab = single(2)
    assert lab.host("h2").name == "h2.gpu0"
    with pytest.raises(BadInput, match="no host called 'gpu0'"):
        lab.host("gpu0")


def test_a_servers_name_wins_over_a_gpus() -> None:
    lab = parse_lab(
        "name: x\nnetwork: 10.0.0.0/24\nservers:\n"
        "  - {name: b, gpus: [{name: a, model: M}], nics: [{name: n, address: 10.0.0.1, gpu: a}]}\n"
        "  - {name: a, nics: [{name: m, address: 10.0.0.2}]}\n"
    )
    assert lab.host("a").name == "a.m"
    assert lab.host("b").name == "b.a"


def test_unknown_names_bring_the_nearest(ofc2022: Lab) -> None:
    with pytest.raises(
        BadInput, match="no device called 'tor3': did you mean tor"
    ):
        ofc2022.device("tor3")
    with pytest.raises(BadInput, match="no OCS called 'zzz': known: ocs1"):
        ofc2022.circuit_switch("zzz")


def test_endpoints_in_text() -> None:
    assert Endpoint.parse("tor1.3") == Endpoint("tor1", "3")
    assert str(Endpoint("ocs1", "17")) == "ocs1.17"
    for text in ("tor1", ".3", "tor1.", ""):
        with pytest.raises(BadInput, match=r"expected device\.port"):
            Endpoint.parse(text)


def test_default_macs_are_locally_administered_and_made_of_the_address() -> (
    None
):
    assert default_mac(IPv4Address("192.168.10.11")) == "02:4c:c0:a8:0a:0b"
