"""Readers of batch schedulers' logs: the Standard Workload Format, and Slurm's sacct."""

import re
from collections.abc import Callable, Mapping

from patchlight.emulation.simulator.traces.model import (
    Gathering,
    TraceJob,
    Wrong,
    duration,
    gpus,
    is_nothing,
    lasting,
    moment,
    some_gpus,
)

# Version 2.2 (cs.huji.ac.il/labs/parallel/workload/swf.html); the fields that are used have names.
_FIELDS = 18
_SUBMITTED = 1
_LASTS = 3
_ALLOCATED = 4
_REQUESTED = 7
_STATUS = 10
_USER = 11
_PARTITION = 15
_PARTIAL = ("2", "3", "4")
"""A line of this status is a part of a job's run: the job has a line for the whole, too."""
_WORD = re.compile(r"\S+")

SACCT = (
    "sacct -a -X -P -o JobID,Submit,ElapsedRaw,State,AllocTRES,User,Partition"
)
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
}
_ENDED |= {"NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
_ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)")


def is_swf(line: str) -> bool:
    """Whether a file that begins with this line is in the Standard Workload Format."""
    words = line.split()
    return line.startswith(";") or (
        len(words) == _FIELDS and all(map(_is_number, words))
    )


def is_sacct(line: str) -> bool:
    """Whether this line is the header of ``sacct --parsable`` or ``--parsable2``."""
    return "|" in line and not {"JobID", "JobIDRaw"}.isdisjoint(
        line.split("|")
    )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_swf(text: str, into: Gathering) -> None:
    """Read a log of the Parallel Workloads Archive: a processor there counts as a GPU."""
    for line, written in enumerate(text.split("\n"), 1):
        words = list(_WORD.finditer(written))
        if not words or words[0][0].startswith(";"):
            continue
        at = 0
        try:
            if len(words) != _FIELDS:
                message = f"{len(words)} values, expected the {_FIELDS} of the format"
                raise Wrong(message, "wrong number of values")
            # What is not known is -1.
            values = ["" if word[0] == "-1" else word[0] for word in words]
            if values[_STATUS] in _PARTIAL:
                continue
            at = _SUBMITTED
            submitted_s = moment(values[at], "the submit time")
            at = _LASTS
            lasts_s = duration(values[at], "the run time")
            at = _ALLOCATED if values[_ALLOCATED] else _REQUESTED
            count = gpus(values[at], "the number of processors")
            at = 0
            name, user, partition = (
                values[each] for each in (0, _USER, _PARTITION)
            )
            into.job(
                TraceJob(
                    name,
                    submitted_s,
                    lasts_s,
                    count,
                    partition,
                    user=user,
                )
            )
        except Wrong as wrong:
            into.bad(line, words[at].start() + 1, wrong)


def read_sacct(text: str, into: Gathering) -> None:
    """Read jobs with their GPUs (``gres/gpu``); ``TraceFileError`` for columns that are missing."""
    lines = text.split("\n")
    header = lines[0].split("|")
    name = "JobID" if "JobID" in header else "JobIDRaw"
    timed = next(
        (each for each in _LASTING if set(each).issubset(header)), None
    )
    counted = [each for each in ("AllocTRES", "ReqTRES") if each in header]
    if "Submit" not in header or not timed or not counted:
        expected = "Submit; ElapsedRaw, Elapsed, or Start and End; AllocTRES or ReqTRES"
        said = f"the columns are {', '.join(header)}: expected {expected}, as printed by: {SACCT}"
        raise into.refuse(1, said)
    for line, written in enumerate(lines[1:], 2):
        if not written.strip():
            continue
        values = written.split("|")
        at = ""
        try:
            if len(values) != len(header):
                message = f"{len(values)} values, expected {len(header)}"
                raise Wrong(message, "wrong number of values")
            row = dict(zip(header, values, strict=True))
            if "." in row[name]:  # A step: its job has a row, too.
                continue
            at = name
            if "+" in row[name]:
                said = (
                    f"{row[name]} is a part of a heterogeneous job: "
                    "these jobs are not supported"
                )
                raise Wrong(said, "part of a heterogeneous job")
            at = "State"
            if (
                state := row.get(at, "COMPLETED").partition(" ")[0]
            ) not in _ENDED:
                said = f"State is {state or 'missing'}: expected that of a job that has ended"
                raise Wrong(said, "not ended")
            at = "Submit"
            submitted_s = moment(row[at], at)
            at = next(
                (each for each in timed if is_nothing(row[each])), timed[-1]
            )
            lasts_s = _LASTING[timed](row)
            at = next((each for each in counted if row[each]), counted[0])
            count = _gpus(row[at], at)
            at = name
            job = TraceJob(
                row[name],
                submitted_s,
                lasts_s,
                count,
                row.get("Partition", ""),
            )
            into.job(job._replace(user=row.get("User", "")))
        except Wrong as wrong:
            before = values[: header.index(at)] if at else []
            into.bad(line, 1 + sum(len(value) + 1 for value in before), wrong)


def _elapsed(row: Mapping[str, str]) -> float:
    """``[DAYS-]HOURS:MINUTES:SECONDS``; the first two may be missing."""
    text = row["Elapsed"]
    parts = _ELAPSED.fullmatch(text)
    if not parts:
        said = f"Elapsed is {text!r}: expected [DAYS-]HOURS:MINUTES:SECONDS"
        raise Wrong(said, "Elapsed unreadable")
    days, hours, minutes, seconds = (
        float(part or 0) for part in parts.groups()
    )
    return lasting(
        86400 * days + 3600 * hours + 60 * minutes + seconds, "Elapsed"
    )


def _between(row: Mapping[str, str]) -> float:
    return lasting(
        moment(row["End"], "End") - moment(row["Start"], "Start"),
        "End - Start",
    )


_LASTING: Mapping[tuple[str, ...], Callable[[Mapping[str, str]], float]] = {
    ("ElapsedRaw",): lambda row: duration(row["ElapsedRaw"], "ElapsedRaw"),
    ("Elapsed",): _elapsed,
    ("Start", "End"): _between,
}
"""How long a job took, by the columns that say it: the first that are there."""


def _gpus(tres: str, what: str) -> int:
    """The GPUs of ``cpu=8,gres/gpu=4,gres/gpu:a100=4``: all, or those of each kind."""
    counts = dict(part.partition("=")[::2] for part in tres.split(","))
    kinds = [
        count for key, count in counts.items() if key.startswith("gres/gpu:")
    ]
    found = [counts["gres/gpu"]] if "gres/gpu" in counts else kinds
    if is_nothing(tres) or not found:
        raise Wrong(
            f"{what} is {tres!r}: a job without a GPU (gres/gpu)", "no GPU"
        )
    return some_gpus(sum(gpus(count, "gres/gpu") for count in found), what)
