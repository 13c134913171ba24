"""Microsoft's Philly trace as published (msr-fiddle/philly-traces): ``cluster_job_log``, JSON.

A job has attempts, each with the servers and GPUs that it held. A job's duration here is the time
of all its attempts together, its GPUs are those of its largest attempt.
"""

import json
import re
from typing import Any

from patchlight.emulation.simulator.traces.model import (
    Gathering,
    TraceJob,
    Wrong,
    lasting,
    moment,
    some_gpus,
)

_BETWEEN = re.compile(r"\s*(,|\])\s*")


def read_log(text: str, into: Gathering) -> None:
    """Read a job log; ``TraceFileError`` if it is no JSON list."""
    decoder = json.JSONDecoder()
    opened = re.compile(r"\s*\[\s*").match(text)
    if not opened:
        raise into.refuse(1, 'expected a JSON list of jobs: [{"jobid": …, "attempts": […]}, …]')
    # Item by item, because so the place of each job is known.
    at = opened.end()
    ended = text.startswith("]", at)
    at += ended
    while not ended:
        try:
            item, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise into.refuse(error.lineno, f"not JSON: {error.msg}") from error
        except RecursionError as error:
            raise into.refuse(_place(text, at)[0], "a job nested too deeply") from error
        try:
            into.job(_job(item))
        except Wrong as wrong:
            line, column = _place(text, at) if into.wants_place() else (1, 1)
            into.bad(line, column, wrong)
        between = _BETWEEN.match(text, end)
        if not between:
            raise into.refuse(_place(text, end)[0], "not JSON: expected ',' or ']' after a job")
        ended, at = between[1] == "]", between.end()
    if text[at:].strip():
        raise into.refuse(_place(text, at)[0], "not JSON: something follows the list of jobs")


def _job(item: Any) -> TraceJob:
    if not isinstance(item, dict) or not isinstance(item.get("jobid"), str):
        raise Wrong("expected a job: an object with a 'jobid'", "no jobid")
    name = item["jobid"]
    try:
        attempts = item.get("attempts")
        if not isinstance(attempts, list) or not attempts:
            raise Wrong("it has no attempts: it never ran", "no attempts")
        submitted = _moment(item, "submitted_time")
        seconds, gpus = 0.0, 0
        for number, attempt in enumerate(attempts, 1):
            lasted, held = _attempt(attempt, number)
            seconds, gpus = seconds + lasted, max(gpus, held)
        lasting(seconds, "the time of all attempts")
        some_gpus(gpus, "the number of GPUs")
        cluster, user = (str(item.get(key) or "") for key in ("vc", "user"))
        return TraceJob(name, submitted, seconds, gpus, cluster, user=user)
    except Wrong as wrong:
        raise Wrong(f"job {name!r}: {wrong}", wrong.reason) from wrong


def _attempt(attempt: Any, number: int) -> tuple[float, int]:
    """How long it lasted, in seconds, and how many GPUs it held."""
    if not isinstance(attempt, dict):
        raise Wrong(f"attempt {number} is no object", "attempt unreadable")
    start, end = (
        _moment(attempt, key, f"attempt {number}: ") for key in ("start_time", "end_time")
    )
    if end < start:
        raise Wrong(f"attempt {number} ends before it starts", "attempt ends before it starts")
    try:
        held = sum(len(server["gpus"]) for server in attempt["detail"])
    except (KeyError, TypeError):
        raise Wrong(
            f"attempt {number}: expected 'detail' with the 'gpus' of each server",
            "attempt unreadable",
        ) from None
    return end - start, held


def _moment(item: dict[str, Any], key: str, where: str = "") -> float:
    value = item.get(key)
    try:
        return moment("" if value is None else str(value), key)
    except Wrong as wrong:
        raise Wrong(f"{where}{wrong}", wrong.reason) from wrong


def _place(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
