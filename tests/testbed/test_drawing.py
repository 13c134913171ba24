"""Pictures of labs: every device and circuit is in them."""

import io
from itertools import pairwise

import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure

from patchlight.testbed.draw.drawing import FORMATS, draw_lab
from patchlight.testbed.draw.drawing_layout import DrawingLayout
from patchlight.testbed.generate.generate import fat_tree, linear, tree
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import load_lab, parse_lab


def svg_of(figure: Figure) -> str:
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(written, format="svg")
    return written.getvalue()


def test_the_papers_lab_names_all_there_is() -> None:
    lab = load_lab("ofc2022")
    svg = svg_of(draw_lab(lab, lab.initial_maps))
    for name in (
        "server4",
        "tor2",
        "ocs1",
        "gpu5",
        "Titan V",
        "192.168.10.16",
        "10Gbps",
    ):
        assert name in svg
    assert "connected to tor1" in svg
    assert "unused fibre" in svg
    assert "one-way" not in svg


def test_one_way_light_is_shown_as_such() -> None:
    lab = load_lab("ofc2022")
    assert "one-way circuit" in svg_of(
        draw_lab(lab, {"ocs1": PortMap.of([(1, 7)])})
    )


def test_the_colours_follow_the_light() -> None:
    lab = load_lab("ofc2022")
    blue = "#0072b2"
    orange = "#d55e00"
    mixed = svg_of(draw_lab(lab, lab.initial_maps))
    gathered = svg_of(
        draw_lab(
            lab, {"ocs1": PortMap.duplex((n, n + 6) for n in range(1, 7))}
        )
    )
    assert gathered.count(blue) > mixed.count(blue)
    assert gathered.count(orange) < mixed.count(orange)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_written(kind: str) -> None:
    lab = load_lab("ofc2022")
    start = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[kind]
    written = io.BytesIO()
    draw_lab(lab, lab.initial_maps).savefig(written, format=kind)
    assert written.getvalue().startswith(start)


def test_boxes_of_a_row_do_not_overlap() -> None:
    for lab in (load_lab("ofc2022"), tree(64), fat_tree(16), linear(40)):
        layout = DrawingLayout(lab)
        assert len(layout.boxes) == len(
            [*lab.servers, *lab.packet_switches, *lab.circuit_switches]
        )
        rows: dict[float, list[tuple[float, float]]] = {}
        for box in layout.boxes.values():
            rows.setdefault(box.y, []).append((box.x, box.x + box.width))
        for row in rows.values():
            row.sort()
            assert all(a[1] <= b[0] for a, b in pairwise(row))
        for fibre in lab.fibres:
            assert {fibre.a, fibre.b} <= set(layout.points)


def test_odd_labs_can_be_drawn() -> None:
    for text in (
        "name: x\nnetwork: 10.0.0.0/24\nservers: []\n",
        "name: x\nnetwork: 10.0.0.0/24\nservers: []\npacket_switches: [{name: s, datapath_id: 1, "
        "ports: 1}]\ncircuit_switches: [{name: o, driver: dry-run, address: 'h:1', ports: 2}]\n",
        "name: x\nnetwork: 10.0.0.0/24\nservers: [{name: a, nics: []}]\n",
    ):
        lab = parse_lab(text)
        assert "<svg" in svg_of(draw_lab(lab, lab.initial_maps))
