"""What is no mistake in a lab file, but likely forgotten: warnings of ``patchlight lab check``."""

from importlib.metadata import entry_points

from patchlight.testbed.io.groups import Fields
from patchlight.testbed.io.issues import FileIssues, Located
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.labfile.listed import SWITCHES, items


def note_oversights(lab: Fields, issues: FileIssues) -> None:
    """Note what a good lab file seems to lack."""
    servers, *kinds = (items(lab, key) for key in ("servers", *SWITCHES))
    switches = [switch for kind in kinds for switch in kind]
    if not (servers or switches):
        issues.at(lab["name"], "the lab has nothing but a name: expected servers or switches")
    user = lab["workers"].value.get("user") if "workers" in lab else None
    if user is not None and user.value == "root":
        message = "workers run as root: whoever may submit jobs can read all files of the servers"
        issues.at(user, f"{message}; expected dynamic, or a user by name")
    plugged: set[Endpoint] = {
        end.value for fibre in items(lab, "fibres") for end in fibre["ends"].value
    }
    for server in servers:
        _note_server(server, plugged, issues)
    joined = {end.device for end in plugged}
    # A switch alone is a lab for whoever tries a driver.
    if servers or len(switches) > 1:
        for name in (switch["name"] for switch in switches):
            if name.value not in joined:
                message = f"nothing joins {name.value}: expected a fibre to it in 'fibres'"
                issues.at(name, message)
    emulated = {driver.name for driver in OCS_DRIVERS.values() if driver.device}
    emulated |= {point.name for point in entry_points(group="patchlight.emulated_ocs")}
    for switch in items(lab, "circuit_switches"):
        driver = switch["driver"]
        if driver.value not in emulated:
            message = f"no emulated device speaks {driver.value}: the lab cannot be emulated"
            issues.at(driver, f"{message}; expected one of {', '.join(sorted(emulated))}")


def _note_server(server: Fields, plugged: set[Endpoint], issues: FileIssues) -> None:
    name: Located[str] = server["name"]
    if "management" not in server:
        message = f"server {name.value} has no management address, at which its agent answers"
        issues.at(name, f"{message}: expected 'management: {name.value}:8471'")
    for nic in (nic["name"] for nic in items(server, "nics")):
        if Endpoint(name.value, nic.value) not in plugged:
            message = f"NIC {name.value}.{nic.value} has no fibre: expected one in 'fibres'"
            issues.at(nic, message)
