"""The conformance suite for drivers of optical switches.

On the command line, against any device; an emulated one runs in another terminal, started by
``patchlight emulate ocs polatis-scpi --switching-time 5ms``::

    python -m patchlight.conformance polatis-scpi --device 127.0.0.1:5025
    python -m patchlight.conformance my_package.driver:Driver --device 127.0.0.1:3082

In histories of simulated labs with faults, which are part of Patchlight's source (``--device`` is
the emulated device that the driver speaks to, unless it derives from a built-in driver)::

    python -m patchlight.conformance my_package.driver:Driver --device polatis-scpi --histories 200

With pytest, a test of each check (``run_check`` rewires the device, whatever it carries)::

    from patchlight.conformance import CHECKS, run_check

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check, switch):
        asyncio.run(run_check(check, lambda: Driver(switch, "password")))

The driver is a callable ``(CircuitSwitch, password) -> CircuitDriver``, or for a wavelength switch
``(WavelengthSwitch, password) -> WavelengthDriver``, with ``WAVELENGTH_CHECKS`` and on the command
line ``--inputs`` and ``--outputs``. Its contract is ``patchlight.controller.circuits.contract``.
"""

import asyncio
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

import click

import patchlight
from patchlight.console.commands import CrashReport, report
from patchlight.console.rendering import Coloured, Column, Table, say
from patchlight.controller.circuits.conformance import (
    CHECKS,
    WAVELENGTH_CHECKS,
    Check,
    CheckFailed,
    RaiseAlarm,
    alarms_arrive,
)
from patchlight.controller.circuits.conformance_ground import INITIAL, PORTS
from patchlight.controller.circuits.conformance_run import (
    CheckResult,
    NewDriver,
    run_check,
    run_checks,
)
from patchlight.controller.circuits.registry import (
    DriverFactory,
    device_lock,
    open_driver,
    password_of,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.ocs_drivers import DRIVER_GROUP, OCS_DRIVERS
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import Grid, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.units import parse_time

__all__ = [
    "CHECKS",
    "INITIAL",
    "PORTS",
    "Check",
    "CheckFailed",
    "CheckResult",
    "NewDriver",
]
__all__ += [
    "WAVELENGTH_CHECKS",
    "RaiseAlarm",
    "alarms_arrive",
    "run_check",
    "run_checks",
]


@click.command(
    context_settings={"show_default": True},
    epilog="The checks make and break circuits on ports 1 to 24; of a wavelength switch, "
    "channels from and to port 1. A device that carries light is left alone unless it is that of "
    "--initial; in the end it has its map again. "
    "Exit codes: 0 all passed, 1 some failed, 2 wrong input or a device in use: nothing was done.",
)
@click.argument("driver", metavar="MODULE:CLASS|NAME")
@click.option(
    "--device",
    "address",
    metavar="HOST:PORT|NAME",
    help="Where the device answers; with --histories, the emulated device of that NAME.",
)
@click.option(
    "--histories",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Use the driver in COUNT simulated histories instead, which need Patchlight's source.",
)
@click.option(
    "--ports",
    type=click.IntRange(PORTS),
    default=32,
    help="On each side.",
)
@click.option(
    "--inputs",
    type=click.IntRange(1),
    help="Of a wavelength switch.",
)
@click.option(
    "--outputs",
    type=click.IntRange(1),
    help="Of a wavelength switch.",
)
@click.option(
    "--grid",
    metavar="GRID",
    help="Of a wavelength switch: 50GHz if it says none.",
)
@click.option(
    "--user",
    default="admin",
    help="Whom to log in as.",
)
@click.option(
    "--password-env",
    metavar="VARIABLE",
    help="Environment variable of the password.",
)
@click.option(
    "--switching-time",
    default="25ms",
    metavar="TIME",
)
@click.option(
    "--datapath-id",
    type=int,
    metavar="N",
    help="Of a switch that connects to Patchlight.",
)
@click.option(
    "--initial",
    metavar="CIRCUITS",
    help="What the device carries and may lose for as long as this takes.",
)
@click.option(
    "--any-map",
    is_flag=True,
    help="Interrupt whatever circuits there are.",
)
@click.option(
    "--check-timeout",
    default="2min",
    metavar="TIME",
)
@click.option(
    "--control",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="Of an emulated device: it is made to raise an alarm, and that has to arrive.",
)
def conformance(
    driver: str,
    switching_time: str,
    initial: str | None,
    any_map: bool,
    check_timeout: str,
    control: Path | None,
    address: str | None,
    histories: int | None,
    **options: Any,
) -> int:
    """Check that a driver does what every driver must. It REWIRES the device.

    The driver is MODULE:CLASS, or the NAME of one that is installed. With --inputs or --outputs
    it is one of a wavelength switch.
    """
    if histories is not None:
        return _play_histories(driver, address, histories)
    if address is None:
        raise BadInput(
            "--device is missing: where the device answers, HOST:PORT"
        )
    options["address"] = address
    switch = _switch(driver, parse_time(switching_time), options)
    factory = _factory(driver) if ":" in driver else open_driver
    password = password_of(switch)
    texts = [text for text in (initial or "").split(",") if text.strip()]
    expected = (
        PortMap if isinstance(switch, CircuitSwitch) else SpectrumMap
    ).parse(texts)
    longest_s = parse_time(check_timeout)

    async def run() -> list[CheckResult]:
        results = []
        checks = run_checks(
            lambda: factory(switch, password),
            expected,
            any_map=any_map,
            longest_s=longest_s,
            password=password,
            raise_alarm=None
            if control is None
            else functools.partial(_raise_alarm, control),
        )
        async with contextlib.aclosing(checks):
            async for result in checks:
                click.echo(
                    "F" if result.failure else ".",
                    nl=False,
                    err=True,
                )
                results.append(result)
        click.echo(err=True)
        return results

    with device_lock([switch], "the conformance suite"):
        results = asyncio.run(run())
    table = Table(
        Column("check", whole=True),
        "result",
        "what it asks for, or why it failed",
    )
    for result in results:
        outcome = (
            Coloured("failed", "bad")
            if result.failure
            else Coloured("passed", "good")
        )
        about = result.failure or result.about.replace("``", "")
        table.add_row(result.name.replace("_", " "), outcome, about)
    table.print()
    failed = sum(bool(result.failure) for result in results)
    say(f"{len(results) - failed} of {len(results)} checks passed")
    return int(failed > 0)


def _switch(
    driver: str,
    switching_time_s: float,
    options: dict[str, Any],
) -> Any:
    """The device, as a lab file describes it."""
    shape = {key: options.pop(key) for key in ("inputs", "outputs", "grid")}
    rest = {
        "name": "device",
        "driver": driver,
        "switching_time_s": switching_time_s,
        **options,
    }
    if not any(shape.values()):
        return CircuitSwitch(
            **rest,
            initial=INITIAL,
        )
    del rest["ports"], rest["datapath_id"]
    if shape["inputs"] is None or shape["outputs"] is None:
        raise BadInput(
            "a wavelength switch has --inputs and --outputs, say both"
        )
    grid = Grid.parse(shape["grid"]) if shape["grid"] else Grid()
    return WavelengthSwitch(
        **rest,
        inputs=shape["inputs"],
        outputs=shape["outputs"],
        grid=grid,
    )


async def _raise_alarm(control: Path) -> None:
    from patchlight.emulation.lab.network import send_fault

    request = {"report": "*C EQPT: port 3: mirror stuck"}
    try:
        await asyncio.to_thread(send_fault, control, request)
    except BadInput as error:
        raise CheckFailed(
            f"the emulated device raises no alarm: {error.message}"
        ) from error


def _factory(path: str) -> DriverFactory:
    # As ``python -m`` does: a driver in the folder where one works needs no installation.
    sys.path.insert(0, "")
    try:
        return cast(DriverFactory, resolve_name(path))
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"loading the driver {path}: {error}") from error


def _play_histories(
    driver: str,
    device: str | None,
    count: int,
) -> int:
    """Play histories of labs whose circuit switches all have this driver; the exit code."""
    source = Path(patchlight.__file__).parents[1]
    if not (source / "tests" / "simulation").is_dir():
        raise BadInput(
            "histories are part of Patchlight's source, which is not installed here",
            hint="clone it, run its deploy/bootstrap.sh, and repeat this with its .venv",
        )
    with tempfile.TemporaryDirectory(prefix="patchlight-") as folder:
        name = driver
        if ":" in driver:
            name = "driver-under-test"
            _install(
                Path(folder),
                name,
                driver,
                device,
            )
        paths = (folder, os.getcwd(), os.environ.get("PYTHONPATH", ""))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        command = [
            sys.executable,
            "-m",
            "tests.simulation",
            "--driver",
            name,
        ]
        command += ["--seeds", f"1-{count}"]
        return subprocess.run(
            command,
            cwd=source,
            env=environment,
            check=False,
        ).returncode


def _install(
    folder: Path,
    name: str,
    driver: str,
    device: str | None,
) -> None:
    """Register a driver and its emulated device, as an installed package would."""
    from patchlight.emulation.optical.protocols import server

    factory = _factory(driver)
    classes = factory.__mro__ if isinstance(factory, type) else ()
    places = [f"{each.__module__}:{each.__qualname__}" for each in classes]
    derived = (
        row.name
        for row in OCS_DRIVERS.values()
        if row.device and row.place in places
    )
    spoken = device or next(derived, None)
    if spoken is None:
        raise BadInput(
            f"{driver} derives from no built-in driver: which emulated device does it speak to?",
            hint=f"--device NAME, one of: {', '.join(server.emulated_drivers())}",
        )
    served = server.server_class(spoken)
    emulated = f"{served.__module__}:{served.__qualname__}"
    package = folder / "driver_under_test-0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: driver-under-test\nVersion: 0\n"
    )
    (package / "entry_points.txt").write_text(
        f"[{DRIVER_GROUP}]\n{name} = {driver}\n[{server.DEVICE_GROUP}]\n{name} = {emulated}\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 all passed, 1 some failed, 2 nothing was done."""
    try:
        code = conformance.main(
            arguments,
            "python -m patchlight.conformance",
            standalone_mode=False,
        )
    except BaseException as error:
        code = report(error, CrashReport())
    sys.exit(code)


if __name__ == "__main__":
    main()
