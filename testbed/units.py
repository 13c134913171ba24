"""Parses and formats quantities with units: ``"25Gbps"``, ``"25ms"``, ``"528MiB"``, ``"1.5dB"``.

Rates and decimal sizes are powers of 1000 (SI), ``KiB``/``MiB``/``GiB`` powers of 1024 (IEC
80000-13). Parsers raise ``BadInput`` with the accepted units.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from patchlight.testbed.errors import BadInput

Units = Mapping[str, float]
"""Each unit as a multiple of the base unit."""
RATE = {
    "bps": 1,
    "kbps": 1e3,
    "Mbps": 1e6,
    "Gbps": 1e9,
    "Tbps": 1e12,
}
TIME = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "min": 60,
    "h": 3600,
    "d": 86400,
}
_TIME_WRITTEN = {unit: TIME[unit] for unit in ("ns", "us", "ms", "s")}
_SIZE_SI = {
    "B": 1,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
}
SIZE = {
    **_SIZE_SI,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
LOSS = {"dB": 1}
POWER = {"dBm": 1}
SHARE = {"%": 0.01}
_NUMBER = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*"
)


def pattern(units: Units) -> str:
    """The regular expression (JSON Schema's) of a number with one of these units."""
    # JSON Schema has no case-insensitive patterns.
    either = "|".join("".join(_either_case(c) for c in unit) for unit in units)
    return rf"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*({either})\s*$"


def _either_case(letter: str) -> str:
    return (
        f"[{letter.lower()}{letter.upper()}]" if letter.isascii() else letter
    )


def _parse(
    text: object,
    units: Units,
    what: str,
    example: str,
    *,
    signed: bool = False,
) -> float:
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    by_folded = {unit.lower(): factor for unit, factor in units.items()}
    if match:
        number, unit = match.groups()
        # Exact spelling first, then any case: "10gbps" is unambiguous.
        factor = units.get(unit, by_folded.get(unit.lower()))
        if factor is not None and math.isfinite(
            value := float(number) * factor
        ):
            if value < 0 and not signed:
                raise BadInput(f"{text!r} is not a {what}: expected 0 or more")
            return value
    raise BadInput(
        f"{text!r} is not a {what}: expected a number with one of {', '.join(units)}, "
        f"like {example!r}"
    )


def parse_rate(text: object) -> int:
    """``"25Gbps"`` → 25_000_000_000 bits per second; must be positive."""
    rate_bps = round(
        _parse(
            text,
            RATE,
            "rate",
            "25Gbps",
            signed=True,
        )
    )
    if rate_bps <= 0:
        raise BadInput(f"{text!r} is not a rate: expected more than 0 bps")
    return rate_bps


def parse_time(text: object) -> float:
    """``"25ms"`` → 0.025 seconds, ``"30d"`` → 2_592_000; not negative."""
    return _parse(
        text,
        TIME,
        "time",
        "25ms",
    )


def parse_size(text: object) -> int:
    """``"528MiB"`` → 553_648_128 bytes; not negative."""
    return round(
        _parse(
            text,
            SIZE,
            "size",
            "528MiB",
        )
    )


def parse_loss(text: object) -> float:
    """``"1.5dB"`` → 1.5 decibels; not negative."""
    return _parse(
        text,
        LOSS,
        "loss",
        "1.5dB",
    )


def parse_power(text: object) -> float:
    """``"-3dBm"`` → −3.0 decibels relative to one milliwatt."""
    return _parse(
        text,
        POWER,
        "power",
        "-3dBm",
        signed=True,
    )


def parse_share(text: object) -> float:
    """``"0.1%"`` → 0.001; from 0 to 100%."""
    share = _parse(
        text,
        SHARE,
        "share",
        "0.1%",
    )
    if share > 1:
        raise BadInput(f"{text!r} is not a share: expected at most 100%")
    return share


def format_rate(rate_bps: float | None) -> str:
    """``25_000_000_000`` → ``"25Gbps"``; ``None`` (no limit) → ``"unlimited"``."""
    return "unlimited" if rate_bps is None else _format(rate_bps, RATE)


def format_time(time_s: float) -> str:
    """``0.025`` → ``"25ms"``."""
    return _format(time_s, _TIME_WRITTEN)


def format_size(size_bytes: int) -> str:
    """``553_648_128`` → ``"554MB"``: SI units, three digits."""
    return _format(size_bytes, _SIZE_SI)


def write_rate(rate_bps: int) -> str:
    """A rate that ``parse_rate`` reads back as equal: ``"40Gbps"``, ``"1234567bps"``."""
    return _write(rate_bps, RATE, lambda text: parse_rate(text) == rate_bps)


def write_time(time_s: float) -> str:
    """A time that ``parse_time`` reads back as equal: ``"25ms"``."""
    return _write(
        time_s, _TIME_WRITTEN, lambda text: parse_time(text) == time_s
    )


def write_size(size_bytes: int) -> str:
    """A size that ``parse_size`` reads back as equal: ``"64GB"``, ``"16777216B"``."""
    return _write(
        size_bytes, _SIZE_SI, lambda text: parse_size(text) == size_bytes
    )


def write_loss(loss_db: float) -> str:
    """A loss that ``parse_loss`` reads back as equal: ``"1.5dB"``."""
    return f"{_plain(loss_db)}dB"


def write_power(power_dbm: float) -> str:
    """A power that ``parse_power`` reads back as equal: ``"-3dBm"``."""
    return f"{_plain(power_dbm)}dBm"


def write_share(share: float) -> str:
    """A share that ``parse_share`` reads back as equal: ``"0.1%"``."""
    # Multiplying by 100 and 0.01 may not return the same float; a neighbour's text may.
    percent = round(share * 100, 12)
    texts = (
        f"{_plain(number)}%" for number in (percent, share * 100, share / 0.01)
    )
    return next(
        (text for text in texts if parse_share(text) == share),
        f"{_plain(percent)}%",
    )


WRITTEN: Mapping[str, tuple[Callable[[Any], str], str]] = {
    "bps": (write_rate, "_bps"),
    "ns": (write_time, "_s"),
    "B": (write_size, "_bytes"),
    "dB": (write_loss, "_db"),
    "dBm": (write_power, "_dbm"),
    "%": (write_share, ""),
}
"""By the first unit: the formatter of a quantity, and the suffix of its field's name."""


def _write(
    value: float,
    units: Units,
    reads_back: Callable[[str], bool],
) -> str:
    fitting = sorted(
        (f for f in units.values() if abs(value) >= f), reverse=True
    )
    names = {factor: unit for unit, factor in units.items()}
    base = names[1]
    # The largest lossless unit: division may round, so each text is read back.
    exact = (
        t for f in fitting if reads_back(t := f"{_plain(value / f)}{names[f]}")
    )
    return next(exact, f"{_plain(value)}{base}")


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _format(value: float, units: Units) -> str:
    fitting = [
        (factor, unit)
        for unit, factor in units.items()
        if abs(value) >= factor
    ]
    factor, unit = (
        max(fitting) if fitting else min((f, u) for u, f in units.items())
    )
    return f"{value / factor:.4g}{unit}"
