"""Ranges, fibres in a line and defaults: what is short means what is written out."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import (
    LabFileError,
    parse_lab,
    spread_text,
)
from patchlight.testbed.labfile.writer import (
    json_schema,
    lab_file_reference,
    write_lab,
)
from tests.support.schemas import Draft202012Validator
from tests.support.tables import mistakes, unmarked

SHORT = """\
name: small
network: 192.168.10.0/24
defaults:
  gpu: {model: A100}
  nic: {rate: 40Gbps}
  packet_switch: {ports: 5}
  fibre: {rate: 40Gbps, loss: 0.2dB}
servers:
  - name: server[1-2]
    management: 10.0.0.[11-12]:8471
    gpus:
      - name: gpu[0-1]
    nics:
      - {name: "nic[0-1]", address: "192.168.10.[11-14]", gpu: "gpu[0-1]"}
packet_switches:
  - {name: "tor[1-2]", datapath_id: "0x[1-2]"}
circuit_switches:
  - name: ocs1
    driver: calient-tl1
    address: 10.0.0.5:3082
    ports: 16
    cross_connects: ["[1-4]-[5-8]", 9>10]
fibres:
  - server[1-2].nic[0-1] - ocs1.[1-4]
  - ends: ["tor[1-2].[1-4]", "ocs1.[5-12]"]
    loss: 0.5dB
  - {ends: tor1.5 - tor2.5, rate: 10Gbps}
"""


def written_out(servers: int, nics: int, padded: bool, rate: str) -> str:
    """What ``short`` says, each thing on its own."""
    number = "{:02}" if padded else "{}"
    numbers = [number.format(n) for n in range(1, servers + 1)]
    lines = ["name: x", "network: 10.0.0.0/16", "servers:"]
    for server, name in enumerate(numbers):
        lines += [f"- name: s{name}", f"  management: m{name}:1", "  gpus:"]
        lines += [f"  - {{name: g{n}, model: M}}" for n in range(nics)]
        lines += ["  nics:"]
        for n in range(nics):
            nic = f"name: n{n}, address: 10.0.1.{1 + server * nics + n}, gpu: g{n}, rate: {rate}"
            lines += [f"  - {{{nic}}}"]
    lines += ["packet_switches:"]
    lines += [
        f"- {{name: t{n}, datapath_id: {n}, ports: {nics}}}"
        for n in range(1, servers + 1)
    ]
    lines += ["fibres:"]
    for n, name in enumerate(numbers, 1):
        lines += [
            f"- {{ends: [s{name}.n{port}, t{n}.{port + 1}], rate: {rate}}}"
            for port in range(nics)
        ]
    return "\n".join(lines)


def short(servers: int, nics: int, padded: bool, rate: str) -> str:
    names = f"[{1:02}-{servers:02}]" if padded else f"[1-{servers}]"
    return f"""
name: x
network: 10.0.0.0/16
defaults: {{gpu: {{model: M}}, nic: {{rate: {rate}}}, fibre: {{rate: {rate}}}}}
servers:
- name: s{names}
  management: m{names}:1
  gpus:
  - name: g[0-{nics - 1}]
  nics:
  - name: n[0-{nics - 1}]
    address: 10.0.1.[1-{servers * nics}]
    gpu: g[0-{nics - 1}]
packet_switches:
- name: t[1-{servers}]
  datapath_id: "[1-{servers}]"
  ports: {nics}
fibres:
- s{names}.n[0-{nics - 1}] - t[1-{servers}].[1-{nics}]
"""


@settings(max_examples=25)
@given(
    st.integers(1, 20),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from(["1Gbps", "40Gbps"]),
)
def test_short_and_written_out_are_the_same_lab(
    servers: int, nics: int, padded: bool, rate: str
) -> None:
    lab = parse_lab(short(servers, nics, padded, rate))
    assert lab == parse_lab(written_out(servers, nics, padded, rate))
    assert parse_lab(write_lab(lab)) == lab


def fibre(lab: Lab, end: str) -> str:
    return next(
        f"{f.a} {f.b} {f.loss_db} {f.rate_bps}"
        for f in lab.fibres
        if str(f.a) == end
    )


def test_what_equal_things_have_in_common_is_written_once() -> None:
    lab = parse_lab(SHORT)
    assert [str(host.nic.address) for host in lab.hosts] == [
        f"192.168.10.{n}" for n in range(11, 15)
    ]
    assert {nic.rate_bps for server in lab.servers for nic in server.nics} == {
        40_000_000_000
    }
    assert [switch.datapath_id for switch in lab.packet_switches] == [1, 2]
    assert lab.circuit_switches[0].initial.texts == (
        "1-5",
        "2-6",
        "3-7",
        "4-8",
        "9>10",
    )
    assert len(lab.fibres) == 13
    assert fibre(lab, "server2.nic1") == "server2.nic1 ocs1.4 0.2 40000000000"
    assert fibre(lab, "tor2.1") == "tor2.1 ocs1.9 0.5 40000000000"
    assert fibre(lab, "tor1.5") == "tor1.5 tor2.5 0.2 10000000000"


# Below each message: what stands there, and what stands there instead; ‸ is where the mistake is.
MISTAKES = mistakes("""
expands to 3 values: expected 1 or 2, the number of
    10.0.0.[11-12] ⇒ ‸10.0.0.[11-13]
expands to 3 values: expected 1 or 2 or 4
    "192.168.10.[11-14]" ⇒ ‸"192.168.10.[11-13]"
'[2-1]' in 'server[2-1]' is not a range: expected increasing
    server[1-2]⏎ ⇒ ‸server[2-1]⏎
'[1-]' in 'server[1-]' is not a range
    server[1-2]⏎ ⇒ ‸server[1-]⏎
expands to more than 100,000 values
    server[1-2]⏎ ⇒ ‸server[1-999999999]⏎
'server[a-b]' is not a device name
    server[1-2]⏎ ⇒ ‸server[a-b]⏎
4 and 3 ports in '[1-4]-[5-7]': expected the same number
    "[1-4]-[5-8]" ⇒ ‸"[1-4]-[5-7]"
expected two ports with ' - '
    - server[1-2].nic[0-1] - ocs1.[1-4] ⇒ - ‸server1.nic0
a fibre is not a list (2 here are): write 'tor1.5 - tor2.5'
    - {ends: tor1.5 - tor2.5, rate: 10Gbps}⏎ ⇒ - ‸[tor1.5, tor2.5]⏎  - [tor1.6, tor2.6]⏎
port 17 is outside ocs1: expected 1
    nic[0-1] - ocs1.[1-4] ⇒ nic[0-1] - ‸ocs1.[14-17]
6 in 'server[1-3].nic[0-1]' and 4 in 'ocs1.[1-4]'
    - server[1-2] ⇒ - ‸server[1-3]
expected a rate with its unit
    rate: 40Gbps, loss ⇒ rate: ‸40, loss
unknown key 'modle' in the defaults of a GPU
    {model: A100} ⇒ {‸modle: A100}
unknown key 'fibr' in the defaults: did you mean 'fibre'?
      fibre: { ⇒   ‸fibr: {
""")


@pytest.mark.parametrize(("good", "bad", "message"), MISTAKES)
def test_a_mistake_is_told_once_at_its_place(
    good: str, bad: str, message: str
) -> None:
    assert good in SHORT
    text, line, column = unmarked(SHORT.replace(good, bad, 1))
    with pytest.raises(LabFileError) as caught:
        parse_lab(text)
    found = [
        issue for issue in caught.value.issues if message in issue.message
    ]
    assert [(issue.line, issue.column) for issue in found] == [
        (line, column)
    ], str(caught.value)
    at_place = [
        i for i in caught.value.issues if (i.line, i.column) == (line, column)
    ]
    assert len(at_place) == 1


def test_ranges_that_multiply_beyond_measure_are_refused() -> None:
    text = "name: x\nservers:\n- name: s[1-99999]\n  nics:\n  - name: n[1-99999]\n"
    with pytest.raises(
        LabFileError, match="expand to more than 100,000 items"
    ):
        parse_lab(text)


def test_long_ranges_in_many_places_are_refused() -> None:
    ocs = "{driver: calient-tl1, address: 'a:1', ports: 9, password_env: 'P[1-99999]', name: "
    switches = "".join(f"- {ocs}o{n}}}\n" for n in range(5))
    with pytest.raises(
        LabFileError, match="ranges expand to more than 400,000 values"
    ):
        parse_lab(f"name: x\ncircuit_switches:\n{switches}")


def test_a_long_lab_is_short() -> None:
    lab = parse_lab(
        "name: x\nnetwork: 10.0.0.0/8\ndefaults: {gpu: {model: M}}\nservers:\n"
        "- name: s[1-2000]\n  gpus:\n  - name: g[0-1]\n  nics:\n"
        "  - {name: 'n[0-1]', gpu: 'g[0-1]', address: '10.1.[0-39].[100-199]'}\n"
    )
    assert len(lab.hosts) == 4000
    assert str(lab.hosts[-1].nic.address) == "10.1.39.199"


def test_a_text_stands_for_each_of_its_ranges() -> None:
    assert spread_text("a[1-2,7]b[08-10]")[:4] == [
        "a1b08",
        "a1b09",
        "a1b10",
        "a2b08",
    ]
    assert spread_text("plain") == ["plain"]
    with pytest.raises(BadInput, match="is not a range"):
        spread_text("a[1,,2]")


def test_editors_take_the_short_form() -> None:
    validator = Draft202012Validator(json_schema())
    validator.validate(json.loads(json.dumps(yaml.safe_load(SHORT))))
    wrong = SHORT.replace("server[1-2]\n", "server.1\n")
    assert not validator.is_valid(yaml.safe_load(wrong))


def test_the_short_file_in_the_reference_is_a_lab() -> None:
    _, _, rest = lab_file_reference().partition("## Ranges and defaults")
    lab = parse_lab(rest.partition("```yaml\n")[2].partition("```")[0])
    assert (len(lab.hosts), len(lab.fibres)) == (8, 25)
