"""Quantities in and out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [
        ("25Gbps", 25_000_000_000),
        ("10gbps", 10_000_000_000),
        ("1.5 Mbps", 1_500_000),
        (" 400kbps ", 400_000),
        ("1e3bps", 1000),
        (".5Tbps", 500_000_000_000),
    ],
)
def test_rates_are_read_in_bits_per_second(text: str, rate_bps: int) -> None:
    assert units.parse_rate(text) == rate_bps


def test_sizes_tell_decimal_from_binary_units() -> None:
    assert units.parse_size("528MiB") == 528 * 2**20
    assert units.parse_size("528MB") == 528_000_000


def test_times_losses_and_powers() -> None:
    assert units.parse_time("25ms") == pytest.approx(0.025)
    assert units.parse_time("2min") == 120
    assert units.parse_time("30d") == 30 * 24 * units.parse_time("1h")
    assert units.parse_time("3µs") == pytest.approx(3e-6)
    assert units.parse_loss("1.5dB") == 1.5
    assert units.parse_power("-3dBm") == -3


@pytest.mark.parametrize(
    "text", ["25", "25 GBit", "", "Gbps", "1..2Gbps", "nanGbps", "infGbps", 25]
)
def test_a_wrong_rate_is_refused_with_the_units_it_could_have(
    text: object,
) -> None:
    with pytest.raises(
        BadInput,
        match=r"is not a rate: expected a number with one of bps, kbps",
    ):
        units.parse_rate(text)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_rate, "0Gbps"),
        (units.parse_rate, "-1Gbps"),
        (units.parse_time, "-1ms"),
        (units.parse_loss, "-0.1dB"),
        (units.parse_size, "-1B"),
        (units.parse_rate, "1e999Gbps"),
        (units.parse_time, "1e999s"),
        (units.parse_power, "-1e999dBm"),
    ],
)
def test_what_no_lab_can_have_is_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(BadInput):
        parse(text)


def test_numbers_for_people_have_the_unit_that_fits() -> None:
    assert units.format_rate(25_000_000_000) == "25Gbps"
    assert units.format_rate(None) == "unlimited"
    assert units.format_time(0.025) == "25ms"
    assert units.format_time(0) == "0ns"
    assert units.format_size(553_648_128) == "553.6MB"


@given(st.integers(min_value=1, max_value=10**15))
def test_a_written_rate_reads_back_equal(rate_bps: int) -> None:
    assert units.parse_rate(units.write_rate(rate_bps)) == rate_bps


@given(st.floats(min_value=0, max_value=1e6))
def test_a_written_time_reads_back_equal(time_s: float) -> None:
    assert units.parse_time(units.write_time(time_s)) == time_s


@given(
    st.floats(min_value=0, max_value=1e6),
    st.floats(min_value=-1e6, max_value=1e6),
)
def test_written_losses_and_powers_read_back_equal(
    loss_db: float, power_dbm: float
) -> None:
    assert units.parse_loss(units.write_loss(loss_db)) == loss_db
    assert units.parse_power(units.write_power(power_dbm)) == power_dbm


def test_what_is_written_is_short() -> None:
    assert units.write_rate(40_000_000_000) == "40Gbps"
    assert units.write_rate(1_234_567) == "1.234567Mbps"
    assert units.write_time(0.025) == "25ms"
    assert units.write_loss(0.3) == "0.3dB"
    assert units.write_power(0.0) == "0dBm"
