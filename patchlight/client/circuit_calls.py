"""The part of the controller's client that is about circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast
from urllib.parse import quote

from patchlight.client.calls import PAGE, Answer, Call, Calls, call
from patchlight.testbed.lab.labmaps import check_map_name

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.changes import Change, Plan
    from patchlight.testbed.wire.rest.circuits import (
        AlarmShape,
        CircuitSwitchShape,
        DriftOf,
        Light,
        Lock,
        Named,
        Pressed,
        SavedMaps,
        StopButton,
    )


class HowToChange(TypedDict, total=False):
    """How a change is asked for: see ``controller.api.models.ChangeRequest``.

    With ``detach`` one does not wait for its end.
    """

    why: str
    spare_jobs: bool
    planned_from: str
    detach: bool


class CircuitCalls(Calls):
    """What can be asked and told of circuits; ``ControllerClient`` makes the calls."""

    # -- changing circuits ---------------------------------------------------------------------
    # Each of these takes the options of ``HowToChange`` and answers with the change as it ended,
    # or as it began. Beside each is what answers with what would change.

    def _change(self, path: str, body: Mapping[str, Any], options: HowToChange) -> Call[Change]:
        said: dict[str, Any] = {**body, **options}
        prefer = "respond-async" if said.pop("detach", False) else ""
        return cast("Change", (yield from self._call("POST", path, said, prefer)))

    def _planned(self, path: str, body: Mapping[str, Any]) -> Call[Plan]:
        said = {**body, "dry_run": True}
        return cast("Plan", (yield from self._call("POST", path, said)))

    @call
    def reconfigure(
        self,
        /,
        maps: Mapping[str, Sequence[str]],
        *,
        only: bool = False,
        disconnect: Mapping[str, Sequence[int | str]] | None = None,
        **options: Unpack[HowToChange],
    ) -> Call[Change]:
        """Ask for cross-connects to be made and ports to be freed; what became of it.

        Of a wavelength switch they name a channel: ``1-2@193.100``, and ``3@193.100`` frees one.
        """
        body = _wanted(maps, disconnect, only=only)
        return (yield from self._change("/reconfigurations", body, options))

    @call
    def preview_reconfiguration(
        self,
        /,
        maps: Mapping[str, Sequence[str]],
        *,
        only: bool = False,
        disconnect: Mapping[str, Sequence[int | str]] | None = None,
    ) -> Call[Plan]:
        """What that would change, and what speaks against it."""
        body = _wanted(maps, disconnect, only=only)
        return (yield from self._planned("/reconfigurations", body))

    @call
    def roll_back(self, /, number: int, **options: Unpack[HowToChange]) -> Call[Change]:
        """Undo one change, and nothing that other changes did."""
        return (yield from self._change(f"/reconfigurations/{number}/rollback", {}, options))

    @call
    def preview_roll_back(self, /, number: int) -> Call[Plan]:
        """What that would change."""
        return (yield from self._planned(f"/reconfigurations/{number}/rollback", {}))

    @call
    def together(
        self, /, nodes: Sequence[str], *, force: bool = False, **options: Unpack[HowToChange]
    ) -> Call[Change]:
        """Light servers or hosts onto one packet switch; ``force`` also moves jobs' circuits."""
        body = {"nodes": list(nodes), "force": force}
        return (yield from self._change("/together", body, options))

    @call
    def preview_together(self, /, nodes: Sequence[str], *, force: bool = False) -> Call[Plan]:
        """What that would change."""
        return (yield from self._planned("/together", {"nodes": list(nodes), "force": force}))

    @call
    def light_paths(
        self, /, pairs: Sequence[tuple[str, str]], **options: Unpack[HowToChange]
    ) -> Call[Change]:
        """Join pairs of ends by light over as many circuit switches as it takes."""
        body = {"pairs": [list(pair) for pair in pairs]}
        return (yield from self._change("/light-paths", body, options))

    @call
    def preview_light_paths(self, /, pairs: Sequence[tuple[str, str]]) -> Call[Plan]:
        """What that would change."""
        body = {"pairs": [list(pair) for pair in pairs]}
        return (yield from self._planned("/light-paths", body))

    @call
    def restore(self, /, name: str, **options: Unpack[HowToChange]) -> Call[Change]:
        """Bring about the maps saved under a name."""
        return (yield from self._change(f"{_map_path(name)}/restore", {}, options))

    @call
    def preview_restore(self, /, name: str) -> Call[Plan]:
        """What that would change."""
        return (yield from self._planned(f"{_map_path(name)}/restore", {}))

    @call
    def repair(self, /, names: Sequence[str], **options: Unpack[HowToChange]) -> Call[Change]:
        """Bring the devices back to their last committed maps."""
        return (yield from self._change("/drift/repair", {"ocs": list(names)}, options))

    @call
    def preview_repair(self, /, names: Sequence[str]) -> Call[Plan]:
        """What that would change."""
        return (yield from self._planned("/drift/repair", {"ocs": list(names)}))

    @call
    def adopt(self, names: Sequence[str], why: str = "") -> Call[Change]:
        """Take what the devices have as their committed maps."""
        body = {"ocs": list(names), "why": why}
        return cast("Change", (yield from self._call("POST", "/drift/adopt", body)))

    @call
    def reconfigurations(self, last: int | None = None) -> Call[list[Change]]:
        """Every change so far (or the ``last`` few), oldest first."""
        if last is not None and last <= PAGE:
            return list(
                (yield from self._call("GET", "/reconfigurations", last=last))["reconfigurations"]
            )

        def page_after(row: Change | None) -> Call[list[Change]]:
            after = row["id"] if row else 0
            answer = yield from self._call("GET", "/reconfigurations", last=PAGE, after=after)
            return list(answer["reconfigurations"])

        rows = yield from self._pages(page_after)
        return rows[-(last or 0) :]

    @call
    def past_reconfigurations(
        self, since: float, until: float, *, last: int = PAGE, before: int | None = None
    ) -> Call[list[Change]]:
        """The ``last`` changes that began between these times, oldest first.

        With ``before``, of those with lower numbers.
        """
        wanted: dict[str, Any] = {} if before is None else {"before": before}
        wanted |= {"since": since, "until": until}
        answer = yield from self._call("GET", "/reconfigurations", last=last, **wanted)
        return list(answer["reconfigurations"])

    @call
    def reconfiguration(self, number: int, step: int = 0, wait_s: float = 0.0) -> Call[Change]:
        """One change; one under way with its ``progress``.

        With ``wait_s`` (30 at most), that is waited for until it is beyond this ``step``.
        """
        path = f"/reconfigurations/{number}"
        return cast("Change", (yield from self._call("GET", path, step=step, wait_s=wait_s)))

    @call
    def cancel_change(self, number: int, why: str = "") -> Call[Change]:
        """Halt a change before its next step, and undo what it did; it ends a moment later."""
        path = f"/reconfigurations/{number}/cancel"
        return cast("Change", (yield from self._call("POST", path, {"why": why})))

    # -- looking at circuits -------------------------------------------------------------------

    @call
    def light(self, name: str) -> Call[Light]:
        """The power (dBm) of each cross-connect of an OCS, and its ports that are not ready."""
        return cast("Light", (yield from self._call("GET", f"/circuits/{name}/light")))

    @call
    def circuit_switches(self) -> Call[list[CircuitSwitchShape]]:
        """Each circuit switch, whether it answers, and what it says that it is."""
        return list((yield from self._call("GET", "/circuit-switches"))["circuit_switches"])

    @call
    def accept_light(self, names: Sequence[str]) -> Call[dict[str, int]]:
        """Take the power as it is now for the baselines; how many circuits of each OCS."""
        return dict((yield from self._call("POST", "/baselines", {"ocs": list(names)}))["circuits"])

    @call
    def alarms(self, names: Sequence[str] = ()) -> Call[list[AlarmShape]]:
        """What the devices reported by themselves, since the controller runs."""
        return list((yield from self._call("GET", "/alarms", ocs=list(names)))["alarms"])

    @call
    def drift(self) -> Call[dict[str, DriftOf]]:
        """How each device differs from its last committed map."""
        return dict((yield from self._call("GET", "/drift"))["drift"])

    # -- what operators leave ------------------------------------------------------------------

    @call
    def locks(self) -> Call[list[Lock]]:
        """Every locked port."""
        return list((yield from self._call("GET", "/locks"))["locks"])

    @call
    def lock(
        self, name: str, ports: Sequence[int | str], *, keep: bool = False, why: str = ""
    ) -> Call[list[Lock]]:
        """Lock ports for everybody, or with ``keep`` for everybody else."""
        body = {"ocs": name, "ports": list(ports), "keep": keep, "why": why}
        return list((yield from self._call("POST", "/locks", body))["locks"])

    @call
    def unlock(self, name: str, ports: Sequence[int | str], why: str = "") -> Call[list[Lock]]:
        """Take locks away; those that there were."""
        body = {"ocs": name, "ports": list(ports), "why": why}
        return list((yield from self._call("POST", "/locks/release", body))["locks"])

    @call
    def saved_maps(self) -> Call[list[SavedMaps]]:
        """The maps that were saved."""
        return list((yield from self._call("GET", "/maps"))["maps"])

    @call
    def save_map(self, name: str, names: Sequence[str] = (), why: str = "") -> Call[SavedMaps]:
        """Keep the present maps under a name."""
        body = {"ocs": list(names), "why": why}
        return cast("SavedMaps", (yield from self._call("PUT", _map_path(name), body)))

    @call
    def forget_map(self, name: str) -> Call[Named]:
        """Forget saved maps."""
        return cast("Named", (yield from self._call("DELETE", _map_path(name))))

    @call
    def stop_button(self) -> Call[Pressed | None]:
        """Who pressed the stop button, when and why; ``None`` if it is not pressed."""
        pressed: Pressed | None = (yield from self._call("GET", "/stop"))["pressed"]
        return pressed

    @call
    def press_stop(self, why: str = "") -> Call[StopButton]:
        """Halt the change under way, and refuse new ones."""
        return cast("StopButton", (yield from self._call("POST", "/stop", {"why": why})))

    @call
    def clear_stop(self, why: str = "") -> Call[StopButton]:
        """Let changes begin again."""
        return cast("StopButton", (yield from self._call("POST", "/stop/clear", {"why": why})))


def _map_path(name: str) -> str:
    check_map_name(name)
    return f"/maps/{quote(name, safe='')}"


def _wanted(
    maps: Mapping[str, Sequence[str]],
    disconnect: Mapping[str, Sequence[int | str]] | None,
    *,
    only: bool,
) -> Answer:
    return {
        "maps": {name: list(texts) for name, texts in maps.items()},
        "disconnect": {name: list(ports) for name, ports in (disconnect or {}).items()},
        "only": only,
    }
