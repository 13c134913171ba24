"""Writes each event of the controller as a sentence."""

import json
from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby
from typing import Any

_SENTENCES = {
    "circuits-begun": "change {id} began: {why}",
    "defragmented": "change {reconfiguration} for running jobs: {state}",
    "interleaved": "jobs {jobs} send in turns, with a period of {period_s} s",
    "resumed": "change {reconfiguration}, interrupted earlier: {state}; {message}",
    "unreachable": "{ocs} does not answer: {message}",
    "reachable": "{ocs} answers again after {away_s} s",
    "alarm": "{ocs}: {severity} alarm of {subject}: {words}",
    "drift": "{ocs} drifts: missing {missing}; not committed {unknown}",
    "locked": "{by} locked {ocs} {ports}: {why}",
    "unlocked": "{by} unlocked {ocs} {ports}: {why}",
    "claim": "claim {claim} is {state}: {message}",
    "stopped": "{by} pressed the stop button: {why}",
    "stop-cleared": "{by} released the stop button: {why}",
    "baselines": "{by} accepted the present optical power as normal: {circuits}",
    "discovery-begun": "{by} began to discover the wiring",
    "discovery-ended": "{by} ended the discovery of the wiring",
    "port-missing": "{message}: jobs avoid the hosts there",
    "port-back": "{message}",
    "policies": "policies in use: {policies}",
    "policy-fault": "policy {policy} failed: {message}",
    "counted-by": "source of the hosts' traffic counters: {hosts} (switch, snmp: at switch ports)",
    "part-fault": "{part} of the controller failed: {message}",
    "openflow-switch-up": "packet switch {datapath_id} connected from {address}",
    "openflow-switch-down": "packet switch {datapath_id} disconnected",
    "openflow-speaker-up": "the OpenFlow speaker is running",
    "openflow-speaker-down": "the OpenFlow speaker ended",
    "openflow-unknown-switch": "unknown packet switch {datapath_id} connected from {address}",
    "openflow-refused-switch": "packet switch {datapath_id} at {address} refused: {why}",
    "openflow-second-switch": "packet switch {datapath_id} connected twice, from {address}: {why}",
}
_MOST_VALUES = 6


def event_words(event: Mapping[str, Any]) -> str:
    """An event as a sentence; one of another kind as its kind and its message, or its fields."""
    kind = str(event["kind"])
    told = {k: _plain(v) for k, v in event.items()}
    if kind == "drift" and not event["missing"] and not event["unknown"]:
        words = f"{told['ocs']} drifts no longer"
    elif kind in _SENTENCES:
        words = _SENTENCES[kind].format_map(defaultdict(str, told))
    elif kind.startswith("job-"):
        state = kind.removeprefix("job-")
        message = told.get("message", "")
        is_said = message.startswith(state)
        words = f"job {told['job']} {message if is_said else f'{state}: {message}'}"
    elif kind == "circuits":
        message = (
            "" if told.get("message") == "done" else told.get("message", "")
        )
        words = f"change {told['id']} {told['state']}, {told.get('why', '')}: {message}"
    elif kind == "light-measured":
        times = [
            event[key] for key in ("measured_before_s", "measured_after_s")
        ]
        pace = " before, ".join(
            "not measured" if s is None else f"{s:.3g} s" for s in times
        )
        words = (
            f"job {told['job']}, change {told['reconfiguration']}: "
            f"an iteration took {pace} after"
        )
    else:
        rest = {
            k: v
            for k, v in told.items()
            if k not in ("kind", "at", "number", "event") and v
        }
        about = told.get("message") or told.get("words")
        words = f"{kind}: {about or ', '.join(f'{k} {v}' for k, v in rest.items())}"
    return words.strip(" :,;")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        if len(value) > _MOST_VALUES:
            return f"{len(value)} entries"
        return ", ".join(f"{key} {_plain(its)}" for key, its in value.items())
    if isinstance(value, list | tuple):
        if all(isinstance(each, int) for each in value):  # ports: 1-3, 7
            runs = groupby(
                enumerate(sorted(value)), lambda pair: pair[1] - pair[0]
            )
            ports = [[port for _, port in run] for _, run in runs]
            value = [
                f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}"
                for run in ports
            ]
        return ", ".join(map(_plain, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)
