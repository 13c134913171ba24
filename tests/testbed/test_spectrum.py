import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import MapChange
from patchlight.testbed.lab.spectrum import (
    GRIDS,
    Band,
    Channel,
    ChannelConnect,
    Grid,
    SpectrumMap,
    parse_channel_connects,
)

CHANNELS = st.builds(Channel, st.integers(-300, 500), st.integers(1, 16))
WAYS = st.builds(
    ChannelConnect,
    st.integers(1, 4),
    st.integers(1, 4),
    st.builds(Channel, st.integers(-8, 8), st.integers(1, 4)),
    st.sampled_from([0.0, 2.5]),
)


def a_map(ways: list[ChannelConnect]) -> SpectrumMap:
    """As many of them as go together."""
    made = SpectrumMap()
    for way in ways:
        made = made.joined(SpectrumMap.of([way]))
    return made


MAPS = st.lists(WAYS, max_size=6).map(a_map)


@pytest.mark.parametrize(
    ("text", "steps", "slots", "written"),
    [
        ("193.1", 0, 4, "193.100"),
        ("193.100THz", 0, 4, "193.100"),
        ("193.15", 8, 4, "193.150"),
        ("193.10625", 1, 4, "193.10625"),
        ("191.35/75", -280, 6, "191.350/75"),
        ("193.1/12.5", 0, 1, "193.100/12.5"),
    ],
)
def test_channels_are_read_and_written(
    text: str, steps: int, slots: int, written: str
) -> None:
    assert Channel.parse(text) == (steps, slots)
    assert str(Channel.parse(text)) == written


def test_what_a_channel_is() -> None:
    channel = Channel.parse("193.1")
    assert channel.frequency_thz == 193.1
    assert channel.width_ghz == 50
    beside = Channel.parse("193.15")
    half = Channel.parse("193.125")
    assert not channel.overlaps(beside)
    assert channel.overlaps(half)
    assert Channel.parse("193.1/37.5").within(channel)
    assert not half.within(channel)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("blue", "is not a channel: expected a frequency in THz"),
        ("1550", "is not a channel"),
        ("193.101", "the nearest channels are 193.100 and 193.10625"),
        ("193.099", "the nearest channels are 193.09375 and 193.100"),
        ("993.1", "expected 150 to 250 THz"),
        ("193.1/60", "expected a multiple of 12.5 GHz"),
        ("193.1/0", "expected a multiple"),
    ],
)
def test_what_is_no_channel(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words.replace("'", ".")):
        Channel.parse(text)


@given(CHANNELS)
def test_a_channel_reads_back(channel: Channel) -> None:
    assert Channel.parse(str(channel)) == channel


def test_grids_and_bands() -> None:
    assert [str(Grid.parse(text)) for text in GRIDS] == list(GRIDS)
    Grid().check(Channel.parse("193.15"))
    Grid(None).check(Channel.parse("193.10625/37.5"))
    with pytest.raises(
        BadInput,
        match=r"193\.125 is off the grid of 50 GHz: expected 193\.100 or 193\.150",
    ):
        Grid().check(Channel.parse("193.125"))
    with pytest.raises(BadInput, match=r"of 100 GHz: expected 193\.100/100$"):
        Grid(100.0).check(Channel.parse("193.1"))
    with pytest.raises(BadInput, match="is not a grid: expected one of"):
        Grid.parse("40GHz")
    band = Band.parse("191.35-196.1")
    assert str(band) == "191.350-196.100"
    assert Channel.parse("196.1") in band
    assert Channel.parse("196.15") not in band
    for wrong in ("193.1", "196.1-191.35"):
        with pytest.raises(BadInput, match="is not a band"):
            Band.parse(wrong)


def test_ways_are_read_and_written() -> None:
    (way,) = parse_channel_connects("1>3@193.100/75-2.5dB")
    assert str(way) == "1>3@193.100/75-2.5dB"
    assert SpectrumMap.parse(["3-1@193.1", "2>2@193.1"]).texts == (
        "1-3@193.100",
        "2>2@193.100",
    )
    for wrong in ("1>3", "1>3@", "@193.1", "1>3@193.1-dB", "1>3@193.1@193.2"):
        with pytest.raises(BadInput, match=r"1>3@193\.100"):
            parse_channel_connects(wrong)


def test_two_signals_of_one_channel_never_meet() -> None:
    with pytest.raises(
        BadInput, match=r"collide at out:3: 1>3@193\.100 and 2>3@193\.125$"
    ):
        SpectrumMap.parse(["1>3@193.1", "2>3@193.125"])
    with pytest.raises(
        BadInput, match=r"in:1 is one-way: 1>3@193\.100 and 1>4@193\.100$"
    ):
        SpectrumMap.parse(["1>3@193.1", "1>4@193.1"])
    beside = SpectrumMap.parse(["1>3@193.1", "2>3@193.15", "1>4@193.2"])
    assert len(beside) == 3
    assert (
        beside.way_of(2, Channel.parse("193.15/25"))
        == parse_channel_connects("2>3@193.15")[0]
    )
    assert beside.way_of(2, Channel.parse("193.1")) is None


@settings(max_examples=40)
@given(MAPS, MAPS)
def test_a_diff_leads_from_one_map_to_the_other_and_back(
    have: SpectrumMap, want: SpectrumMap
) -> None:
    change = have.diff(want)
    assert have.apply(change) == want
    assert want.apply(change.inverse) == have
    assert bool(change) == (have != want)
    assert not set(change.breaks) & set(change.makes)
    assert have.without(change.breaks).joined(want) == want
    assert (
        SpectrumMap.parse(have.texts)
        == SpectrumMap.parse(have.one_way_texts)
        == have
    )


def test_what_a_device_cannot_do_is_said_of_the_entry() -> None:
    for text, words in (
        ("3>1@193.1", "input 3 is outside 1–2"),
        ("1>5@193.1", "output 5 is outside 1–4"),
        ("1>2@193.125", "is off the grid"),
    ):
        with pytest.raises(BadInput, match=words):
            SpectrumMap.parse([text]).check(2, 4, Grid())
    empty = SpectrumMap()
    with pytest.raises(
        BadInput, match=r"cannot break 1>2@193\.100: it is not connected"
    ):
        empty.apply(MapChange(breaks=parse_channel_connects("1>2@193.1")))
