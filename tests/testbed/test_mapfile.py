"""Port maps as JSON."""

import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.mapfile import maps_as_json, parse_maps
from patchlight.testbed.portmap import PortMap

LAB = load_lab("ofc2022")


def test_maps_are_read_as_written_and_as_the_controller_answers() -> None:
    wanted = {"ocs1": PortMap.of([(1, 7), (7, 1), (2, 8)])}
    assert parse_maps('{"ocs1": ["1-7", "2>8"]}', LAB) == wanted
    assert parse_maps('{"ocs1": {"map": ["1>7", "7>1", "2>8"]}}', LAB) == wanted
    assert maps_as_json(wanted) == {"ocs1": ["1-7", "2>8"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.json: not JSON"),
        ("[" * 100_000, "m.json: not JSON"),
        ("[]", "m.json: expected cross-connects by OCS"),
        ('{"ocs2": []}', "no OCS called 'ocs2': did you mean ocs1"),
        ('{"ocs1": "1-7"}', "m.json: ocs1: expected a list of cross-connects"),
        ('{"ocs1": [1]}', "m.json: ocs1: expected a list of cross-connects"),
        ('{"ocs1": ["1-321"]}', "m.json: ocs1: cross-connect 1>321: port 321 is outside 1–320"),
        ('{"ocs1": ["1-2", "1>3"]}', "m.json: ocs1: in:1 is used twice"),
    ],
)
def test_wrong_maps_are_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_maps(text, LAB, "m.json")
    assert message in str(caught.value)
