"""Wavelengths in a lab file: read, written again, and wrong."""

from collections.abc import Mapping

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.testbed.lab.model import Lab, PacketSwitch
from patchlight.testbed.lab.spectrum import (
    Band,
    Channel,
    ChannelConnect,
    Grid,
    SpectrumMap,
)
from patchlight.testbed.lab.wavelengths import (
    PassivePart,
    Transceiver,
    WavelengthSwitch,
    channels_in,
)
from patchlight.testbed.labfile.reader import LabFileError, load_lab, parse_lab
from patchlight.testbed.labfile.writer import (
    json_schema,
    write_commented_lab,
    write_lab,
)
from tests.support.schemas import Draft202012Validator
from tests.support.tables import mistakes

GOOD = """\
name: coloured
network: 10.0.0.0/24
servers:
  - name: server1
    nics:
      - name: nic0
        address: 10.0.0.1
        transceiver: {tunable: 193.100-193.250, tuning_time: 1ms, sensitivity: -18dBm}
  - name: server2
    nics: [{name: nic0, address: 10.0.0.2, transceiver: {channel: 193.15, launch_power: 1dBm}}]
packet_switches:
  - name: tor1
    datapath_id: 1
    ports: 4
    transceivers: {1: {channel: 193.2}, 2: {channel: 193.3/100, grid: 100GHz}}
wavelength_switches:
  - name: wss1
    inputs: 4
    grid: flexible
    switching_time: 20ms
    cross_connects: ["1-2@193.100", "3>1@193.2-2.5dB"]
  - {name: wss2, inputs: 1, outputs: 9}
passive_parts:
  - {name: star1, kind: coupler, ports: 4}
  - {name: awg1, kind: awg, ports: 4, channels: 193.1-193.4, grid: 100GHz, loss: 5dB}
  - {name: mux1, kind: multiplexer, channels: 193.100-193.250}
fibres:
  - server1.nic0 - wss1.1
  - server2.nic0 - wss1.2
  - tor1.1 - wss1.3
  - wss1.4 - mux1.1
  - mux1.5 - star1.1
  - awg1.4 - wss2.9
"""

# Below each message: what stands there, and what stands there instead; ‸ is where the mistake is.
MISTAKES = mistakes("""
nearest channels are 193.200 and 193.20625
    {channel: 193.2} ⇒ {channel: ‸193.201}
expected 193.200 or 193.250
    {channel: 193.2} ⇒ {channel: ‸193.225}
'blue' is not a channel
    {channel: 193.2} ⇒ {channel: ‸blue}
a transceiver needs a channel
    {1: {channel: 193.2} ⇒ {‸1: {grid: 50GHz}
port 5 is outside the switch
    {1: {channel: 193.2} ⇒ {‸5: {channel: 193.2}
expected a port number
    {1: {channel: 193.2} ⇒ {‸one: {channel: 193.2}
expected the lower frequency first
    tunable: 193.100-193.250 ⇒ tunable: ‸193.2-193.1
193.500 is outside its band 193.100-193.250
    {tunable: ⇒ {channel: ‸193.5, tunable:
has no tuning time
    launch_power: 1dBm ⇒ tuning_time: ‸1ms
'40GHz' is not a grid
    grid: flexible ⇒ grid: ‸40GHz
collide at out:2: 1>2@193.100 and 3>2@193.125 of
    "3>1@193.2-2.5dB" ⇒ ‸"3>2@193.125"
in:1 is one-way: 1>2@193.100 and 1>3@193.100
    "3>1@193.2-2.5dB" ⇒ ‸"1>3@193.1"
input 5 is outside 1–4
    "3>1@193.2-2.5dB" ⇒ ‸"5>1@193.2"
is not a channel's cross-connect
    "3>1@193.2-2.5dB" ⇒ ‸"3>1"
a whole number from 1
    inputs: 4 ⇒ inputs: ‸0
a wavelength switch lacks 'inputs'
    {name: wss2, inputs: 1, ⇒ ‸{name: wss2,
a coupler does not sort channels
    kind: coupler, ⇒ kind: coupler, channels: ‸193.1-193.2,
a part of kind coupler needs 'ports'
    kind: coupler, ports: 4 ⇒ kind: ‸coupler
'prism' is not a kind of passive part
    kind: coupler ⇒ kind: ‸prism
needs 'channels'
    kind: awg, ports: 4, channels: 193.1-193.4, ⇒ kind: ‸awg, ports: 4,
193.125/100 is off the grid of 100 GHz
    193.1-193.4 ⇒ ‸193.125-193.4
a multiplexer of 4 channels has 5 ports
    193.100-193.250} ⇒ 193.100-193.250, ports: ‸4}
port 6 is outside mux1: expected 1 to 5
    mux1.5 - ⇒ ‸mux1.6 -
port 10 is outside wss2: expected 1 to 9
    wss2.9 ⇒ ‸wss2.10
duplicate device tor1
    name: wss2 ⇒ name: ‸tor1
""")


def test_what_is_declared_is_read_and_written_again() -> None:
    lab = parse_lab(GOOD)
    first, second = (server.nics[0].transceiver for server in lab.servers)
    band = Band(Channel(0), Channel(24))
    assert first == Transceiver(
        Channel(0), band, tuning_time_s=0.001, sensitivity_dbm=-18
    )
    assert second == Transceiver(Channel(8), launch_power_dbm=1)
    (tor,) = lab.packet_switches
    assert [(port, str(one.channel)) for port, one in tor.transceivers] == [
        (1, "193.200"),
        (2, "193.300/100"),
    ]
    wss, branching = lab.wavelength_switches
    assert (wss.grid, wss.switching_time_s, wss.outputs) == (
        Grid(None),
        0.02,
        4,
    )
    assert wss.initial == SpectrumMap.parse(
        ["1>2@193.1", "2>1@193.1", "3>1@193.2-2.5dB"]
    )
    assert (branching.inputs, branching.outputs, branching.ports) == (1, 9, 9)
    star, awg, mux = lab.passive_parts
    assert (star.ports, star.loss_db) == (4, 6.52)
    assert [str(channel) for channel in awg.channels] == [
        f"193.{n}00/100" for n in range(1, 5)
    ]
    assert (awg.loss_db, mux.loss_db, mux.ports) == (5.0, 3.0, 5)
    for text in (write_lab(lab), write_commented_lab(lab)):
        assert parse_lab(text) == lab


def test_a_lab_without_wavelengths_is_written_as_ever() -> None:
    text = write_lab(load_lab("ofc2022"))
    assert not {"transceiver", "wavelength", "passive"} & set(
        text.replace("_", " ").split()
    )


@pytest.mark.parametrize(
    ("old", "new", "message"), MISTAKES, ids=lambda v: str(v)[:40]
)
def test_every_mistake_is_told_with_its_place(
    old: str, new: str, message: str
) -> None:
    assert old in GOOD
    marked = GOOD.replace(old, new, 1)
    before, _, after = marked.partition("‸")
    place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
    with pytest.raises(LabFileError) as caught:
        parse_lab(before + after)
    found = {
        (issue.line, issue.column): issue.message
        for issue in caught.value.issues
    }
    assert message in found[place]


def test_all_mistakes_at_once() -> None:
    text = GOOD.replace("193.2}", "193.225}").replace(
        "3>1@193.2-2.5dB", "9>1@193.2"
    )
    with pytest.raises(LabFileError) as caught:
        parse_lab(text.replace("kind: coupler", "kind: prism"))
    assert len(caught.value.issues) == 3


def test_editors_know_the_keys() -> None:
    validator = Draft202012Validator(json_schema())
    document = yaml.safe_load(GOOD)
    document["packet_switches"][0]["transceivers"] = {"1": {"channel": 193.2}}
    validator.validate(document)
    document["wavelength_switches"][0]["grid"] = "40GHz"
    assert not validator.is_valid(document)


@pytest.mark.parametrize(
    ("part", "ways"),
    [
        (PassivePart("c", "coupler", 3), {(1, 0): [2, 3], (3, 8): [1, 2]}),
        (
            PassivePart("a", "awg", 3, (Channel(0), Channel(8))),
            {(1, 0): [1], (3, 8): [1], (1, 4): []},
        ),
        (
            PassivePart("m", "multiplexer", 3, (Channel(0), Channel(8))),
            {(1, 0): [2], (1, 8): [3], (2, 0): [1], (2, 8): [], (3, 8): [1]},
        ),
    ],
    ids=["coupler", "awg", "multiplexer"],
)
def test_where_parts_let_light_out(
    part: PassivePart, ways: Mapping[tuple[int, int], list[int]]
) -> None:
    for (inp, steps), outputs in ways.items():
        assert list(part.outputs_of(inp, Channel(steps))) == outputs
    assert list(part.outputs_of(1, None)) == (
        [2, 3] if part.kind == "coupler" else []
    )


GRIDS_WITH_CHANNELS = st.sampled_from([12.5, 25.0, 50.0, 75.0, 100.0, 200.0])


@st.composite
def transceivers(draw: st.DrawFn) -> Transceiver:
    spacing_ghz = draw(GRIDS_WITH_CHANNELS)
    apart = int(spacing_ghz / 6.25)
    slots = int(spacing_ghz / 12.5)
    first = draw(st.integers(-20, 20))
    more = draw(st.integers(0, 9))
    channel = Channel(apart * (first + draw(st.integers(0, more))), slots)
    band = Band(Channel(apart * first), Channel(apart * (first + more)))
    tunable = draw(st.booleans())
    powers = st.none() | st.sampled_from([-18.5, 0.0, 3.0])
    return Transceiver(
        channel,
        band if tunable else None,
        Grid(draw(st.sampled_from([spacing_ghz, None]))),
        draw(st.sampled_from([0.0, 0.001])) if tunable else 0.0,
        draw(powers),
        draw(powers),
    )


@st.composite
def labs(draw: st.DrawFn) -> Lab:
    ways = draw(
        st.lists(
            st.builds(
                ChannelConnect,
                st.integers(1, 3),
                st.integers(1, 4),
                st.builds(Channel, st.integers(-9, 9), st.integers(1, 5)),
                st.sampled_from([0.0, 0.5, 12.25]),
            ),
            max_size=4,
        )
    )
    spectrum = SpectrumMap()
    for way in ways:
        spectrum = spectrum.joined(SpectrumMap.of([way]))
    switch = WavelengthSwitch(
        "wss1", 3, 4, Grid(None), draw(st.floats(0, 9)), 6.0, spectrum
    )
    spacing_ghz = draw(GRIDS_WITH_CHANNELS)
    first = Channel(int(spacing_ghz / 6.25) * draw(st.integers(-9, 9)))
    last = first._replace(steps=first.steps + draw(st.integers(8, 90)))
    channels = channels_in(Band(first, last), Grid(spacing_ghz))
    loss_db = draw(st.none() | st.sampled_from([0.0, 2.5]))
    parts = (
        PassivePart("star1", "coupler", draw(st.integers(2, 64)), (), loss_db),
        PassivePart("awg1", "awg", 8, channels, loss_db),
        PassivePart(
            "mux1", "multiplexer", len(channels) + 1, channels, loss_db
        ),
    )
    own = ((1, draw(transceivers())), (3, draw(transceivers())))
    tor = PacketSwitch("tor1", 1, 4, transceivers=own)
    return Lab(
        "made",
        packet_switches=(tor,),
        wavelength_switches=(switch,),
        passive_parts=parts,
    )


@settings(max_examples=50)
@given(labs())
def test_any_lab_with_wavelengths_reads_back(lab: Lab) -> None:
    assert parse_lab(write_lab(lab)) == lab


DRIVEN = """
name: driven
wavelength_switches:
  - {name: wss1, inputs: 4, outputs: 4, driver: waveshaper-http, address: "10.0.0.1:80"}
  - {name: wss2, inputs: 4, outputs: 1, driver: waveshaper-htp, address: "10.0.0.1:80"}
  - {name: wss3, inputs: 4, outputs: 1, driver: calient-tl1, address: "10.0.0.2:80"}
  - {name: wss4, inputs: 4, outputs: 1, driver: dry-run}
  - {name: wss5, inputs: 4, address: "10.0.0.3:80"}
  - {name: wss6, inputs: 1, outputs: 4, driver: waveshaper-http, address: "10.0.0.4:80",
     grid: flexible, emulated: {users: [{name: a}], faults: [{lose: "1>2"}, {fail_ports: [5]}]}}
circuit_switches:
  - {name: ocs1, driver: waveshaper-http, ports: 4, address: "10.0.0.2:80"}
  - {name: ocs2, driver: dry-run, ports: 4, address: "10.0.0.5:80",
     emulated: {faults: [{meddle: "1>2@193.100"}]}}
"""


def test_a_wavelength_switch_has_a_driver_as_an_ocs_has() -> None:
    written = (
        "name: driven\nwavelength_switches:\n- {name: wss1, inputs: 1, outputs: 4, "
        'driver: waveshaper-http, address: "10.0.0.1:80", user: op, password_env: PW, emulated: '
        '{faults: [{lose: 1>2@193.100, after: 3s}, {meddle: "1-2@193.100-2dB,1>3@193.150"}]}}\n'
    )
    lab = parse_lab(written)
    (wss,) = lab.wavelength_switches
    assert (wss.driver, wss.address) == ("waveshaper-http", "10.0.0.1:80")
    assert (wss.user, wss.password_env) == ("op", "PW")
    assert [fault.control for fault in wss.emulated.faults] == [
        {"lose": "1>2@193.100"},
        {"meddle": "1-2@193.100-2dB,1>3@193.150"},
    ]
    assert parse_lab(write_lab(lab)) == lab


def test_drivers_that_do_not_fit_are_mistakes_in_their_place() -> None:
    with pytest.raises(LabFileError) as raised:
        parse_lab(DRIVEN)
    found = [(issue.line, issue.message) for issue in raised.value.issues]
    for place, words in (
        (
            4,
            "a waveshaper-http has one common port, not 4 inputs and 4 outputs",
        ),
        (
            5,
            "unknown driver 'waveshaper-htp': did you mean 'waveshaper-http'?",
        ),
        (5, "duplicate address of a switch 10.0.0.1:80, first on line 4"),
        (
            6,
            "the driver calient-tl1 is for circuit switches: expected one of waveshaper-http",
        ),
        (
            7,
            "a wavelength switch with 'driver' needs 'address': expected both or neither",
        ),
        (
            8,
            "a wavelength switch with 'address' needs 'driver': expected both or neither",
        ),
        (9, "has no flexible grid: expected a fixed one"),
        (10, "a waveshaper-http has no logins: leave out users"),
        (10, "invalid entry for this switch: expected e.g. 3>9@193.100"),
        (10, "port 5 is outside the switch: expected 1 to 4"),
        (
            12,
            "the driver waveshaper-http is for wavelength switches: expected one of calient-tl1",
        ),
        (14, "invalid entry for this switch: expected e.g. 3>9"),
    ):
        assert any(
            line == place and words in message for line, message in found
        ), found
