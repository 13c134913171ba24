"""Every mistake in a lab file, at its exact line and column."""

import pytest

from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from tests.support.lab_files import SMALL_LAB
from tests.support.tables import mistakes, unmarked

# Below each message: what stands there, and what stands there instead; ‸ is where the mistake is.
MISTAKES = mistakes("""
'2small' is not a lab's name: expected a letter
    name: small ⇒ name: ‸2small
expected a lab's name, like 'ofc2022', found nothing
    name: small ⇒ name:‸
found the number 12: put it in quotes
    name: small ⇒ name: ‸12
found true: put it in quotes
    name: small ⇒ name: ‸true
found the YAML tag !host
    name: small ⇒ name: ‸!host x
found a group of keys
    name: small ⇒ name: ‸{a: b}
at most 24 in all
    name: small⏎ ⇒ name: ‸xxxxxxxxxxxxxxxxxxxxxxxxx⏎
a lab lacks 'name': expected its name
    name: small⏎net ⇒ ‸net
duplicate key 'name', first on line 1
    name: small ⇒ name: small⏎‸name: small
unknown key 'fibers' in a lab: did you mean 'fibres'?
    fibres: ⇒ ‸fibers:
unknown key 'zzz' in a lab: expected one of name, network
    scale: 1000 ⇒ ‸zzz: 1
unknown key a list in a lab
    scale: 1000 ⇒ ‸[a]: 1
expected a scale, a number above 0, found the number 0
    scale: 1000 ⇒ scale: ‸0
expected a scale, a number above 0
    scale: 1000 ⇒ scale: ‸1e999
found the text 'many'
    scale: 1000 ⇒ scale: ‸many
is not a fabric: did you mean 'openvswitch'?
    fabric: openvswitch ⇒ fabric: ‸openvswich
a host's address, not a network: expected '192.168.10.0/24'
    192.168.10.0/24 ⇒ ‸192.168.10.5/24
is not a network: expected one like
    192.168.10.0/24 ⇒ ‸192.168.10.0
    192.168.10.0/24 ⇒ ‸192.168.10.0/33
    192.168.10.0/24 ⇒ ‸fd00::/64
duplicate controller address 127.0.0.1:8470
    127.0.0.1:6653 ⇒ ‸127.0.0.1:8470
unknown key 'backfil' in how jobs wait: did you
    scale: 1000 ⇒ queue: {‸backfil: true}
unknown key 'placment' in the policies of the lab
    scale: 1000 ⇒ policies: {‸placment: x}
'' is not a policy: expected a name, FILE.py
    scale: 1000 ⇒ policies: {placement: ‸''}
expected true or false, found
    scale: 1000 ⇒ policies: {defragment: ‸10min}
    scale: 1000 ⇒ queue: {backfill: ‸12}
a policy's deadline is 0.0 s: expected more
    scale: 1000 ⇒ policies: {deadline: ‸0s}
the interval of rewiring is 0.0 s: expected more
    scale: 1000 ⇒ policies: {defragment_every: ‸0s}
'0s' is out of bounds: expected 0.001 s to
    scale: 1000 ⇒ queue: {quantum: ‸0s}
a whole number from 1 to 1000000
    scale: 1000 ⇒ queue: {each_user: {gpus: ‸0}}
a user lacks 'name': expected the login
    scale: 1000 ⇒ queue: {users: [‸{gpus: 2}]}
user ann, first on line
    scale: 1000 ⇒ queue: {users: [{name: ann}, {name: ‸ann}]}
is not a TCP address: expected host:port
    api: 127.0.0.1:8470 ⇒ api: ‸127.0.0.1
is not an agent's address
    10.0.0.11:8471 ⇒ ‸10.0.0.11:84710
'10.0.0.11:22' is not a host: expected a name or an IP
    unix:/run/agent.sock ⇒ unix:/run/agent.sock⏎    ssh: {address: ‸"10.0.0.11:22"}
expected a TCP port, a whole number from 1 to 65535
    unix:/run/agent.sock ⇒ unix:/run/agent.sock⏎    ssh: {port: ‸0}
'' is not a path: expected a file's path
    unix:/run/agent.sock ⇒ unix:/run/agent.sock⏎    ssh: {identity: ‸""}
'SHA256:abc' is not a host key's fingerprint: expected
    unix:/run/agent.sock ⇒ unix:/run/agent.sock⏎    ssh: {host_key: ‸"SHA256:abc"}
expected a server's SSH
    unix:/run/agent.sock ⇒ unix:/run/agent.sock⏎    ssh: ‸[]
is not a Unix socket: expected 'unix:/'
    10.0.0.11:8471 ⇒ ‸unix:agent.sock
management address 10.0.0.11:8471, first on line 8
    unix:/run/agent.sock ⇒ ‸10.0.0.11:8471
device server1, first on line 7
    name: server2 ⇒ name: ‸server1
    name: tor1 ⇒ name: ‸server1
'tor.2' is not a device name: expected a letter, then letters
    name: tor2 ⇒ name: ‸tor.2
expected a GPU model, like 'Tesla M40', found the number 3090
    Titan V ⇒ ‸3090
'-_-' is not a GPU model: expected 1 to 64 printable
    model: Titan V ⇒ model: ‸-_-
'-' is not a GPU model: expected 1 to 64 printable
    model: Titan V ⇒ model: ‸"-"
a GPU lacks 'model': expected the model
    {name: gpu1, model: Titan V} ⇒ ‸{name: gpu1}
GPU UUID GPU-1, first on line 9
    Titan V} ⇒ Titan V, uuid: ‸GPU-1}
GPU gpu2 has no NIC: expected a NIC of the same server with 'gpu: gpu2'
    {name: gpu1, model: Titan V} ⇒ {name: gpu1, model: Titan V}, {name: ‸gpu2, model: X}
expected a list of GPUs, found the text 'gpu1'
    [{name: gpu1, model: Titan V}] ⇒ ‸gpu1
expected a list of NICs, found nothing
    nics: [{name: nic1, address: 192.168.10.12, gpu: gpu1, mac: "02:00:00:00:00:01"}] ⇒ nics:‸
expected a rate with its unit, like '40Gbps', found the number 40
    40Gbps, ⇒ ‸40,
'40 Gigs' is not a rate: expected a number with one of bps
    40Gbps, ⇒ ‸40 Gigs,
unknown key 'rat' in a NIC: did you mean 'rate'?
    rate: 40Gbps, ⇒ ‸rat: 40Gbps,
address 192.168.10.11, first on line 10
    192.168.10.12 ⇒ ‸192.168.10.11
outside the lab's network: expected one in 192.168.10.0/24
    address: 192.168.10.12 ⇒ address: ‸192.168.11.12
address 192.168.10.0 is the network address
    192.168.10.12 ⇒ ‸192.168.10.0
address 192.168.10.255 is the broadcast address
    192.168.10.12 ⇒ ‸192.168.10.255
is not an IPv4 address: expected one like
    192.168.10.12 ⇒ ‸192.168.10.300
MAC address 02:4c:c0:a8:0a:0b, first on line 10
    "02:00:00:00:00:01" ⇒ ‸02:4C:c0:a8:0a:0b
is not the MAC address of one NIC: expected a unicast one
    "02:00:00:00:00:01" ⇒ ‸01:00:5e:00:00:01
is not a MAC address
    "02:00:00:00:00:01" ⇒ ‸02-00-00-00-00-01
in server server2, the name gpu1, first on line 13
    nic1, ⇒ ‸gpu1,
in server server2, the interface nic1, first on line 14
    :01"}] ⇒ :01"}, {name: x, address: 192.168.10.13, interface: ‸nic1}]
GPU gpu1 already has the NIC on line 14: expected one NIC per GPU
    gpu: gpu1, mac: "02:00:00:00:00:01"} ⇒ gpu: gpu1}, {name: x, address: 192.168.10.13, gpu: ‸gpu1}
'a/b' is not an interface
    mac: "02:00:00:00:00:01"} ⇒ interface: ‸a/b}
server server2 has no GPU 'gpu3': did you mean 'gpu1'?
    mac: "02:00:00:00:00:01"}] ⇒ interface: eth0}, {name: x, address: 192.168.10.13, gpu: ‸gpu3}]
datapath id 0x1, first on line 16
    datapath_id: 2, ⇒ datapath_id: ‸0x1,
expected an OpenFlow datapath id, a whole number from 1 to
    id: 2, ⇒ id: ‸0,
a whole number from 1 to 18446744073709551615
    id: 2, ⇒ id: ‸0x10000000000000000,
found the number 010
    datapath_id: 2, ⇒ datapath_id: ‸010,
found the text 'two'
    datapath_id: 2, ⇒ datapath_id: ‸two,
expected the number of ports, a whole number from 1 to 65279
    ports: 4} ⇒ ports: ‸-4}
'-3dB' is not a power: expected a number with one of dBm
    -3dBm ⇒ ‸-3dB
is not a driver's name: expected lower-case letters
    calient-tl1 ⇒ ‸Calient TL1
expected a time with its unit, like '25ms', found the number 25
    25ms ⇒ ‸25
'-1.5dB' is not a loss: expected 0 or more
    1.5dB ⇒ ‸-1.5dB
port 9 is outside the switch: expected 1 to 8
    2>4] ⇒ ‸2>9]
port 0 is outside the switch: expected 1 to 8
    2>4] ⇒ ‸0>4]
input port 3 is used twice, first by 3>1 on line 25: expected each input and each
    2>4] ⇒ ‸3>4]
output port 3 is used twice, first by 1>3 on line 25
    2>4] ⇒ ‸4>3]
'2=4' is not a cross-connect: expected two ports
    2>4] ⇒ ‸2=4]
'4-4' connects a port to itself
    2>4] ⇒ ‸4-4]
expected a cross-connect, like '1-7', found the number 24
    2>4] ⇒ ‸24]
expected 2 ends, found 1
    [tor2.1, ocs1.4] ⇒ ‸[tor2.1]
'tor2' is not a port: expected device.port
    [tor2.1, ocs1.4] ⇒ [‸tor2, ocs1.4]
unknown device 'tor3': did you mean 'tor
    [tor2.1, ocs1.4] ⇒ [‸tor3.1, ocs1.4]
port 5 is outside tor2: expected 1 to 4
    [tor2.1, ocs1.4] ⇒ [‸tor2.5, ocs1.4]
'0' is not a port of tor2: expected 1 to 4
    [tor2.1, ocs1.4] ⇒ [‸tor2.0, ocs1.4]
'x' is not a port of tor2: expected 1 to 4
    [tor2.1, ocs1.4] ⇒ [‸tor2.x, ocs1.4]
'01' is not a port of tor2: expected 1 to 4
    [tor2.1, ocs1.4] ⇒ [‸tor2.01, ocs1.4]
port ocs1.3 is used twice, first on line 29
    [tor2.1, ocs1.4] ⇒ [tor2.1, ‸ocs1.3]
fibre from tor2 to itself: expected two devices
    [tor2.1, ocs1.4] ⇒ [tor2.1, ‸tor2.2]
server server1 has no NIC 'nic9': did you mean 'nic0'?
    [tor2.1 ⇒ [‸server1.nic9
'0.3 dBm' is not a loss: expected a number with one of dB
    loss: 0.3dB ⇒ loss: ‸0.3 dBm
""")


def issues_in(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(LabFileError) as caught:
        parse_lab(text, "lab.yaml")
    return [
        (issue.line, issue.column, issue.message)
        for issue in caught.value.issues
    ]


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES)
def test_a_mistake_is_found_where_it_is_and_alone(
    old: str, new: str, message: str
) -> None:
    assert SMALL_LAB.count(old) >= 1
    head, _, tail = (
        SMALL_LAB.rpartition(old)
        if old.startswith("ports")
        else SMALL_LAB.partition(old)
    )
    text, line, column = unmarked(head + new + tail)
    issues = issues_in(text)
    assert [issue[:2] for issue in issues if message in issue[2]] == [
        (line, column)
    ], issues
    others = [issue for issue in issues if message not in issue[2]]
    # What was renamed is also missed where it was used: nothing else may be said.
    missed = ("lacks", "unknown device", "has no NIC")
    assert all(any(word in issue[2] for word in missed) for issue in others), (
        others
    )


def test_all_mistakes_come_at_once_in_the_order_of_the_file() -> None:
    text = (
        SMALL_LAB.replace("0x1", "0")
        .replace("40Gbps, gpu", "fast, gpu")
        .replace("tor2.1", "tor9.1")
    )
    issues = issues_in(text.replace("network: ", "netwrk: "))
    assert [line for line, _, _ in issues] == [2, 7, 10, 16, 30]


def test_mistakes_are_lines_that_editors_understand() -> None:
    with pytest.raises(LabFileError) as caught:
        parse_lab("name: 1\nnetwork: x\nservers: []\n", "my lab.yaml")
    assert str(caught.value).splitlines() == [
        "my lab.yaml:1:7: expected a lab's name, like 'ofc2022', found the number 1: "
        "put it in quotes",
        "my lab.yaml:2:10: 'x' is not a network: expected one like '192.168.10.0/24'",
    ]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "the file is empty: expected a lab with a name"),
        ("# only a comment\n", 1, 1, "the file is empty"),
        ("- a\n- b\n", 1, 1, "expected a lab with 'name', found a list"),
        ("hello", 1, 1, "found the text 'hello'"),
        ("name: [x\n", 2, 1, "not YAML: "),
        ("name: x\n\tnetwork: y\n", 2, 1, "not YAML: "),
        ("name: 'x\n", 2, 1, "not YAML: "),
        ("name: *x\n", 1, 7, "not YAML: found undefined alias"),
        ("name: x\n--- \nname: y\n", 2, 1, "not YAML: "),
        ("é: \x07", 1, 4, "not YAML: unexpected character U+0007"),
        ("[" * 100_000, 1, 1, "nested more than 32 levels deep"),
        ("&a [*a]", 1, 1, "found a list"),
    ],
)
def test_what_is_no_lab_file_at_all(
    text: str, line: int, column: int, message: str
) -> None:
    issues = issues_in(text)
    assert issues[0][:2] == (line, column)
    assert message in issues[0][2]
    assert len(issues) == 1


def test_servers_need_a_network() -> None:
    text = SMALL_LAB.replace("network: 192.168.10.0/24\n", "")
    with pytest.raises(LabFileError, match="needs 'network'"):
        parse_lab(text)
