"""Benchmarks: measured figures beside a limit or a peer."""

from typing import Any


def figure(
    name: str,
    value: float,
    unit: str,
    limit: str | None = None,
    *,
    peer: str | None = None,
    peer_value: float | None = None,
) -> dict[str, Any]:
    """One measured figure.

    ``limit`` is what it should keep to, as text; ``peer`` who else was measured in the same run.
    """
    return {"name": name, "value": value, "unit": unit, "limit": limit, "peer": peer,
            "peer_value": peer_value}  # fmt: skip
