"""``patchlight lab``: what it prints and how it ends."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from patchlight.cli.main import lab
from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.reader import builtin_labs, labs_dir, parse_lab
from tests.support.schemas import Draft202012Validator


def run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(lab, arguments, input=given)


def test_a_good_file_is_summed_up_in_a_line() -> None:
    result = run("check", "ofc2022")
    assert result.exit_code == 0
    assert result.output.strip().endswith(
        "lab ofc2022 is valid: 4 servers, 6 GPUs, 2 packet switches, 1 circuit switch, 19 fibres"
    )


def test_mistakes_are_lines_and_the_exit_code_is_two(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "name: x\nnetwork: 10.0.0.0/24\nservers:\n  - {name: s, nic: []}\n"
    )
    result = run("check", str(bad), "ofc2022", str(tmp_path / "none.yaml"))
    assert result.exit_code == 2
    lines = result.output.splitlines()
    lacks = (
        "a server lacks 'nics': expected its NIC ports in the lab's network"
    )
    assert lines[0] == f"{bad}:4:5: {lacks}"
    assert (
        lines[1]
        == f"{bad}:4:15: unknown key 'nic' in a server: did you mean 'nics'?"
    )
    assert "is valid" in lines[2]
    assert lines[3].startswith(
        f"{tmp_path}/none.yaml:1:1: cannot be read (No such file"
    )
    assert len(lines) == 4


def test_policies_that_a_lab_file_names_are_there(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    mine = tmp_path / "mine.py"
    path.write_text(
        "name: x\npolicies:\n  order: fifoo\n  placement: mine.py:Mine\n"
    )
    result = run("check", str(path))
    assert result.exit_code == 2
    assert result.output.splitlines() == [
        f"{path}:3:10: unknown policy 'fifoo': did you mean 'fifo'?",
        f"{path}:4:14: policy file {mine} not found",
    ]
    mine.write_text("raise SystemExit('a check runs no program')")
    path.write_text(path.read_text().replace("fifoo", "las:queues=3"))
    result = run("check", str(path))
    assert result.exit_code == 0
    assert "lab x is valid" in result.output


def test_warnings_are_mistakes_only_if_it_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "bare.yaml"
    path.write_text("name: bare\n")
    loose = run("check", str(path))
    strict = run("check", str(path), "--strict")
    assert (loose.exit_code, strict.exit_code) == (0, 2)
    assert loose.output.startswith(
        f"{path}:1:7: warning: the lab has a name only"
    )
    assert "lab bare is valid" in loose.output
    assert strict.output.startswith(f"{path}:1:7: the lab has a name only")
    assert "good" not in strict.output


def test_what_was_found_as_json(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bare = tmp_path / "bare.yaml"
    bad.write_text("name: x\nnothing: 1\n")
    bare.write_text("name: bare\n")
    result = run("check", str(bad), str(bare), "ofc2022", "--json")
    assert result.exit_code == 2
    wrong, warned, good = json.loads(result.output)
    assert (wrong["file"], wrong["good"], wrong["lab"], wrong["counts"]) == (
        str(bad),
        False,
        None,
        {},
    )
    (mistake,) = wrong["issues"]
    assert (mistake["line"], mistake["column"], mistake["kind"]) == (
        2,
        1,
        "mistake",
    )
    assert mistake["message"].startswith("unknown key 'nothing'")
    assert (warned["good"], warned["lab"]) == (True, "bare")
    assert {issue["kind"] for issue in warned["issues"]} == {"warning"}
    assert (good["good"], good["lab"], good["issues"]) == (True, "ofc2022", [])
    assert good["counts"]["circuit switch"] == 1
    strict = run("check", str(bare), "--json", "--strict")
    assert strict.exit_code == 2
    (found,) = json.loads(strict.output)
    assert (found["good"], found["issues"][0]["kind"]) == (False, "mistake")


@pytest.mark.parametrize("shape", ["single", "linear", "tree", "fat-tree"])
@pytest.mark.parametrize("ocs", [(), ("--ocs", "polatis-scpi")])
def test_generated_labs_lack_nothing(
    tmp_path: Path, shape: str, ocs: tuple[str, ...]
) -> None:
    path = tmp_path / "lab.yaml"
    assert (
        run(
            "generate", shape, "--servers", "20", *ocs, "-o", str(path)
        ).exit_code
        == 0
    )
    checked = run("check", "--strict", str(path))
    assert checked.exit_code == 0, checked.output


def test_show_tells_who_is_lit_onto_which_switch() -> None:
    output = run("show", "ofc2022", "--start", "--wide").output
    row = next(line for line in output.splitlines() if "server2.gpu2" in line)
    assert row.split() == [
        "server2.gpu2",
        "Tesla",
        "M40",
        "nic2",
        "192.168.10.13",
        "40Gbps",
        "tor2.3",
        "ocs1",
        "3→15",
        "2.1",
        "dB",
    ]
    assert "tor1.7 – tor2.7" in output
    assert "No link: tor1 3, 4, 6; tor2 1, 2, 5" in output


def test_show_as_json_has_the_documented_shape() -> None:
    seen = json.loads(run("show", "ofc2022", "--json", "--start").output)
    keys = "lab network fabric scale devices hosts links circuits spectra dark"
    assert list(seen) == keys.split()
    assert seen["hosts"][0] == {
        "name": "server1.gpu0",
        "server": "server1",
        "gpu": "gpu0",
        "model": "Tesla M40",
        "nic": "nic0",
        "address": "192.168.10.11",
        "mac": "02:4c:c0:a8:0a:0b",
        "rate_bps": 40_000_000_000,
        "peer": "tor1.1",
        "peers": ["tor1.1"],
        "switch": "tor1",
        "link_rate_bps": 40_000_000_000,
        "loss_db": 2.1,
        "channel": None,
        "via": [{"ocs": "ocs1", "inp": 1, "out": 7}],
    }
    assert seen["circuits"] == {
        "ocs1": ["1-7", "2-8", "3-15", "4-16", "5-11", "6-18"]
    }
    trunk = {
        "a": "tor1.7",
        "b": "tor2.7",
        "rate_bps": 10_000_000_000,
        "loss_db": 0.3,
    }
    trunk |= {"channel": None, "via": []}
    assert trunk in seen["links"]
    assert seen["dark"] == [
        "tor1.3",
        "tor1.4",
        "tor1.6",
        "tor2.1",
        "tor2.2",
        "tor2.5",
    ]
    kinds = [device["kind"] for device in seen["devices"]]
    assert kinds == ["server"] * 4 + ["packet-switch"] * 2 + ["circuit-switch"]


def test_on_a_star_every_host_is_lit_onto_all_others() -> None:
    seen = json.loads(run("show", "oddl4", "--json", "--start").output)
    assert seen["dark"] == []
    assert (seen["hosts"][0]["peer"], seen["hosts"][0]["peers"]) == (
        None,
        ["server2.nic0", "server3.nic0", "server4.nic0"],
    )
    assert "3 ports" in run("show", "oddl4", "--start").output


def test_show_takes_another_map(tmp_path: Path) -> None:
    maps = tmp_path / "maps.json"
    maps.write_text('{"ocs1": {"map": ["1-13", "2>14"]}}')
    seen = json.loads(
        run("show", "ofc2022", "--json", "--map", str(maps)).output
    )
    assert [host["switch"] for host in seen["hosts"]] == ["tor2", *[None] * 5]
    assert seen["hosts"][1]["peer"] is None
    assert "server1.nic1" in seen["dark"]
    piped = run(
        "show", "ofc2022", "--json", "--map", "-", given=maps.read_text()
    )
    assert json.loads(piped.output) == seen


def test_a_map_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    result = run("show", "ofc2022", "--map", str(tmp_path / "none"))
    assert isinstance(result.exception, BadInput)
    assert "cannot be read" in str(result.exception)


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_show_writes_a_picture(tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"lab.{suffix}"
    result = run("show", "ofc2022", "--start", "--output", str(picture))
    assert result.exit_code == 0, result.exception
    assert picture.stat().st_size > 10_000


def test_show_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    wrong = run("show", "ofc2022", "-o", "lab.gif").exception
    assert "expected a name ending in .svg, .png, .pdf" in str(wrong)
    nowhere = run(
        "show", "ofc2022", "-o", str(tmp_path / "none" / "lab.svg")
    ).exception
    assert "cannot write the picture" in str(nowhere)


def test_the_schema_is_one_and_takes_the_built_in_labs() -> None:
    schema = json.loads(run("check", "--schema").output)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for name in builtin_labs():
        validator.validate(
            yaml.safe_load((labs_dir() / f"{name}.yaml").read_text())
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("netwrk", "10.0.0.0/24"),
        ("network", 10),
        ("fabric", "ovs"),
        ("servers", {}),
        ("scale", 0),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(
    key: str, value: object
) -> None:
    validator = Draft202012Validator(
        json.loads(run("check", "--schema").output)
    )
    document = {"name": "x", "network": "10.0.0.0/24", "servers": []}
    validator.validate(document)
    parse_lab(json.dumps(document))
    document[key] = value  # type: ignore[assignment]
    assert not validator.is_valid(document)
    with pytest.raises(BadInput):
        parse_lab(json.dumps(document))


def test_generated_labs_are_printed_or_written(tmp_path: Path) -> None:
    printed = run(
        "generate", "tree", "--servers", "40", "--rate", "10Gbps"
    ).stdout
    assert len(parse_lab(printed).hosts) == 40
    path = tmp_path / "lab.yaml"
    written = run(
        "generate",
        "tree",
        "--servers",
        "40",
        "--rate",
        "10Gbps",
        "-o",
        str(path),
    )
    assert written.exit_code == 0
    assert path.read_text() == printed
    assert run("check", str(path)).exit_code == 0


def test_generate_refuses_what_cannot_be(tmp_path: Path) -> None:
    nowhere = run(
        "generate",
        "single",
        "--servers",
        "1",
        "-o",
        str(tmp_path / "none" / "x"),
    )
    assert "cannot write the lab" in str(nowhere.exception)


def test_init_writes_a_lab_that_is_good_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    arguments = (
        "--servers",
        "3",
        "--gpus",
        "2",
        "--rate",
        "25Gbps",
        "--name",
        "mine",
    )
    assert run("init", *arguments, "--output", str(path)).exit_code == 0
    good = "lab mine is valid: 3 servers, 6 GPUs, 2 packet switches, 1 circuit switch, 19 fibres"
    assert run("check", "--strict", str(path)).output.strip().endswith(good)
    assert "# The number of duplex ports." in path.read_text()
    hosts = json.loads(run("show", str(path), "--json").output)["hosts"]
    assert [host["switch"] for host in hosts] == ["tor1"] * 4 + ["tor2"] * 2
    before = path.read_text()
    refused = run("init", "--output", str(path))
    assert isinstance(refused.exception, BadInput)
    assert path.read_text() == before
    assert run("init", "--output", str(path), "--force").exit_code == 0
    assert path.read_text() != before


@pytest.mark.parametrize("driver", ["polatis-scpi", "openflow"])
def test_init_divides_servers_among_ocses_and_tors(
    driver: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "lab.yaml")
    sizes = ("--servers", "6", "--ocs", "2", "--tors", "3")
    made = run("init", *sizes, "--driver", driver, "--output", path)
    assert made.exit_code == 0
    assert run("check", "--strict", path).exit_code == 0
    hosts = json.loads(run("show", path, "--json").output)["hosts"]
    tors = ["tor1"] * 2 + ["tor2"] * 2 + ["tor3"] * 2
    assert [host["switch"] for host in hosts] == tors
    through = [host.split(".")[0] for host in ends_of(path, "server")]
    assert through == ["ocs1"] * 3 + ["ocs2"] * 3
    few = run("init", "--servers", "1", "--ocs", "2")
    assert isinstance(few.exception, BadInput)


def ends_of(path: str, device: str) -> list[str]:
    """The other ends of the fibres of devices whose name begins so."""
    lab = parse_lab(Path(path).read_text())
    return [str(f.b) for f in lab.fibres if f.a.device.startswith(device)]


def test_init_writes_to_standard_output() -> None:
    assert parse_lab(run("init").stdout) == parse_lab(
        run("init", "--output", "-").stdout
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m.json:1:1: the file is empty: expected cross-connects by OCS"),
        ("[" * 100_000, "m.json:1:1: nested more than 32 levels deep"),
        ('"words"', "m.json:1:1: expected cross-connects by OCS"),
        (
            '{"ocs2": []}',
            "m.json:1:10: lab ofc2022 has no OCS called 'ocs2': did you mean ocs1",
        ),
        ('{"ocs1": "1-7"}', "m.json:1:2: expected a list of cross-connects"),
        ('{"ocs1": [1]}', "m.json:1:11: '1' is not a pair"),
        ('{"ocs1": ["1-321"]}', "m.json:1:11: ocs1 has ports 1–320, not 321"),
        (
            '{"ocs1": ["1-2", "1>3"]}',
            "m.json:1:18: input port 1 is used twice",
        ),
        ('{"ocs1": ["3-3"]}', "m.json:1:11: '3-3' connects a port to itself"),
        (
            '{"ocs1": ["1-2"],\n "ocs1": []}',
            "m.json:2:2: duplicate key 'ocs1', first on line 1",
        ),
    ],
)
def test_wrong_maps_are_refused_with_the_reason(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "m.json"
    file.write_text(text)
    refused = run("show", "ofc2022", "--map", str(file))
    assert isinstance(refused.exception, BadInput)
    assert message in str(refused.exception)


@pytest.mark.parametrize(
    "words",
    [
        ("show", "--json"),
        ("show", "--format", "topology"),
        ("show", "--output", "lab.svg"),
    ],
    ids=" ".join,
)
def test_the_lab_may_be_said_as_everywhere(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = run(*words, "ofc2022").stdout
    assert run(*words, "--lab", "ofc2022").stdout == usual
    monkeypatch.setenv("PATCHLIGHT_LAB", "ofc2022")
    assert run(*words).stdout == usual


def test_a_topology_for_other_schedulers() -> None:
    found = json.loads(run("show", "ofc2022", "--format", "topology").stdout)
    assert found["switches"][0]["nodes"] == ["server1", "server3"]
    conf = run("show", "ofc2022", "--format", "slurm-conf").stdout
    assert "SwitchName=tor1 Nodes=server1,server3\n" in conf
    moved = run(
        "show",
        "ofc2022",
        "--format",
        "slurm",
        "--map",
        "-",
        given="ocs1: [1-7]\n",
    )
    assert yaml.safe_load(moved.stdout)[0]["tree"]["switches"] == [
        {"switch": "tor1", "nodes": "server1"}
    ]
    both = run("show", "ofc2022", "--controller", "127.0.0.1:1")
    assert "LAB and --controller exclude each other" in str(both.exception)
    result = run(
        "show", "--format", "slurm", "--controller", "127.0.0.1:1", "--start"
    )
    assert isinstance(result.exception, BadInput)


COLOURED = """\
name: coloured
network: 10.0.0.0/24
defaults:
  nic: {transceiver: {tunable: 193.100-193.250, sensitivity: -7dBm}}
servers:
  - {name: "server[1-4]", management: "server[1-4]:1", nics: [{name: n, address: "10.0.0.[1-4]"}]}
wavelength_switches:
  - {name: wss1, inputs: 4, cross_connects: ["1-2@193.100", "3-4@193.100-2dB"]}
fibres: ["server[1-4].n - wss1.[1-4]"]
"""


def test_a_lab_with_wavelengths_is_checked_shown_and_drawn(
    tmp_path: Path,
) -> None:
    path = tmp_path / "coloured.yaml"
    picture = tmp_path / "coloured.png"
    path.write_text(COLOURED)
    result = run("check", str(path))
    assert result.exit_code == 0
    assert "1 wavelength switch, 4 fibres" in result.output
    assert (
        f"{path}:9:10: warning: -8.6 dBm of server3.n arrive at server4.n"
        in result.output
    )
    seen = json.loads(run("show", str(path), "--json").output)
    assert [link["channel"] for link in seen["links"]] == ["193.100"]
    assert seen["links"][0]["via"] == [{"ocs": "wss1", "inp": 1, "out": 2}]
    assert seen["spectra"] == {"wss1": ["1-2@193.100", "3-4@193.100-2dB"]}
    assert seen["dark"] == ["server3.n", "server4.n"]
    shown = run("show", str(path)).output
    assert "4×4, grid 50GHz, switches in 50ms, loses 6 dB" in " ".join(
        shown.split()
    )
    assert run("show", str(path), "-o", str(picture)).exit_code == 0
    assert picture.stat().st_size
    path.write_text(COLOURED.replace("1-2@193.100", "1>3@193.100"))
    result = run("check", str(path))
    assert result.exit_code == 2
    assert (
        "two signals would collide at out:3: 1>3@193.100 and 4>3@193.100-2dB"
        in result.output
    )
