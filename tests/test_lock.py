"""``deploy/lock.txt`` has what ``setup.cfg`` asks for, each with hashes, and names no server."""

import configparser
import re

import pytest
from packaging.requirements import Requirement

from tests.support.programs import ROOT

LOCK = (ROOT / "deploy/lock.txt").read_text()
CONFIG = configparser.ConfigParser()
CONFIG.read(ROOT / "setup.cfg")
EXTRAS = CONFIG["options.extras_require"]
SECTIONS = dict(
    re.findall(
        r"^# --- (\S+)\n(.*?)(?=^# --- |\Z)",
        LOCK,
        flags=re.MULTILINE | re.DOTALL,
    )
)
ENTRY = re.compile(
    r"(?P<name>\S+)==(?P<version>\S+)(?P<hashes>( \\\n    --hash=sha256:\w{64})+)\n"
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_line_is_a_version_with_hashes() -> None:
    entries = "".join(SECTIONS.values())
    assert ENTRY.sub("", entries) == ""
    assert "://" not in LOCK


@pytest.mark.parametrize("section", sorted(SECTIONS.keys() - {"build"}))
def test_the_lock_has_what_setup_cfg_asks_for(section: str) -> None:
    asked = EXTRAS[section] + CONFIG["options"]["install_requires"]
    found = {
        canonical(entry["name"]): entry["version"]
        for name, entries in SECTIONS.items()
        if name != "build"
        for entry in ENTRY.finditer(entries)
    }
    for line in filter(
        lambda line: line and not line.startswith("#"), asked.splitlines()
    ):
        wanted = Requirement(line)
        if wanted.name == "torch":  # its build depends on the machine
            continue
        version = found.get(canonical(wanted.name))
        assert version is not None, f"{wanted} is missing: run deploy/lock.sh"
        assert wanted.specifier.contains(version, prereleases=True), (
            f"{wanted}: {version}"
        )
