"""Draws labs from seeds."""

from __future__ import annotations

import dataclasses
import random

from patchlight.testbed.generate.generate import RandomLabShape, lab_of
from patchlight.testbed.lab.model import Lab

DRIVERS = ("calient-tl1", "polatis-scpi", "polatis-tl1", "glimmerglass-tl1")


def draw_lab(seed: int | str) -> Lab:
    """A lab of 2 to 12 servers, 1 to 4 circuit switches of any driver, 2 to 4 packet switches."""
    draw = random.Random(f"lab {seed}")
    leaves = draw.randint(2, 3)
    servers = draw.randint(1, 12 // leaves // 2)
    shape = RandomLabShape(
        leaves,
        servers,
        draw.choice((1, 1, 2)),
        ocs=draw.randint(1, min(4, leaves * servers)),
        spare=draw.randint(1, 3),
        oversubscription=draw.choice((1.0, 4.0)),
        switching_time_s=draw.choice((0.0, 0.025, 0.5)),
    )
    lab = lab_of(shape, "drawn")
    switches = tuple(
        dataclasses.replace(
            switch, driver=draw.choice(DRIVERS), address=f"10.1.0.{number}:3082", user="admin"
        )
        for number, switch in enumerate(lab.circuit_switches, start=1)
    )
    (poll_s,) = draw.choices((1.0, 10.0, 60.0), weights=(1, 4, 45))
    return lab.with_changes(circuit_switches=switches, controller_poll_s=poll_s)
