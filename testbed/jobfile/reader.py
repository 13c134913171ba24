"""Reads job files: YAML in; jobs out, or every mistake with line and column."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from patchlight.testbed.errors import BadInput, FileError
from patchlight.testbed.io.keys import plain, read
from patchlight.testbed.io.reader import (
    FileIssues,
    Located,
    read_standard_input,
    read_text,
)
from patchlight.testbed.jobfile.schema import (
    LONGEST_NAME,
    Job,
    JobFile,
    SeveralJobs,
)
from patchlight.testbed.jobs import (
    MOST_JOBS,
    JobSpec,
    checked_specs,
    contradictions,
)

EXPECTED = "a job file: 'patchlight lab check --schema job' prints its keys"
# Exclusive keys: an option for one of a pair replaces the other.
_INSTEAD = ({"workers", "hosts"}, {"deadline", "requirement"})
_FIELDS = Job.field_of
_KEYS = {field_name: key for key, field_name in _FIELDS.items()}
_OF_FILES = set(SeveralJobs.field_of)
_Located = Mapping[str, Located[Any]]

JobGiven = JobSpec | Mapping[str, Any] | str | os.PathLike[str]
"""A job as a value, a mapping with a job file's keys, or the path of a job file."""


class JobFileError(FileError):
    """A job file has mistakes."""


@dataclass(frozen=True)
class JobBatch:
    """Jobs to submit: all start ``together``, or each is submitted alone."""

    specs: tuple[JobSpec, ...]
    together: bool = True


@dataclass(frozen=True)
class Overrides:
    """Command-line options that replace keys of a job file.

    ``values`` are as ``plain`` makes them; ``sweep`` has each key's values with their spellings.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Sequence[tuple[str, Any]]] = field(
        default_factory=dict
    )
    array: int | None = None

    def __bool__(self) -> bool:
        return bool(self.values or self.sweep or self.array)


NOTHING = Overrides()


def read_jobs(
    path: str | os.PathLike[str], given: Overrides = NOTHING
) -> JobBatch:
    """The jobs in this file (``-``: standard input); ``JobFileError`` with every mistake.

    ``given`` is only for files with one job.
    """
    if str(path) == "-":
        return parse_jobs(
            read_standard_input(EXPECTED), "standard input", given=given
        )
    text = read_text(str(path), JobFileError, EXPECTED)
    return parse_jobs(
        text,
        str(path),
        folder=Path(path).absolute().parent,
        given=given,
    )


def parse_jobs(
    text: str,
    name: str = "job",
    *,
    folder: Path | None = None,
    given: Overrides = NOTHING,
) -> JobBatch:
    """The jobs in this YAML text, called ``name`` in messages.

    Graph files are relative to ``folder``, by default the working directory.
    """
    issues = FileIssues(name, JobFileError)
    file: JobFile | None = read(JobFile, text, issues)
    jobs = (
        None
        if file is None
        else _Reader(issues, folder or Path.cwd()).jobs(file, given)
    )
    issues.raise_if_any()
    assert jobs is not None
    return jobs


def jobs_of(values: Mapping[str, Any], given: Overrides = NOTHING) -> JobBatch:
    """The jobs in a mapping with a job file's keys; ``BadInput`` with every mistake in it."""
    try:
        return parse_jobs(json.dumps(values, ensure_ascii=False), given=given)
    except TypeError as error:
        raise BadInput(
            f"a job may contain only texts, numbers, lists and mappings: {error}"
        ) from error
    except JobFileError as error:
        raise BadInput(
            "\n".join(issue.message for issue in error.issues)
        ) from error


def jobs_meant(given: Sequence[JobGiven]) -> JobBatch:
    """Jobs in any form, which start together.

    Files with a sweep or an array cannot be combined with others: their jobs are submitted alone.
    """
    found = [_meant(each) for each in given]
    specs = tuple(spec for jobs in found for spec in jobs.specs)
    together = all(jobs.together for jobs in found)
    if not together and len(found) > 1:
        raise BadInput(
            "jobs of a sweep or an array start one by one: submit each on its own"
        )
    return JobBatch(specs, together)


def _meant(given: JobGiven) -> JobBatch:
    if isinstance(given, JobSpec):
        return JobBatch((given,))
    return jobs_of(given) if isinstance(given, Mapping) else read_jobs(given)


@dataclass(frozen=True)
class _Reader:
    issues: FileIssues
    folder: Path

    def jobs(self, file: JobFile, given: Overrides) -> JobBatch | None:
        there = file.there
        if "jobs" in file or "jobs" in file.broken:
            return self._several(there, given)
        if "defaults" in file:
            message = (
                "'defaults' are for several jobs: expected 'jobs' beside them"
            )
            self.issues.at(there["defaults"], message)
        if "name" not in file:
            if "name" not in file.broken:
                self.issues.add(
                    1,
                    1,
                    "expected a job's 'name', or 'jobs'",
                )
            return None
        if self.issues:
            return None  # Other mistakes would follow: a misspelt key is missing, too.
        job = {
            key: value for key, value in there.items() if key not in _OF_FILES
        }
        return self._written_out(job, there, given)

    def _several(self, file: _Located, given: Overrides) -> JobBatch | None:
        if given:
            self.issues.add(
                1,
                1,
                "options need a file with one job, but this file has 'jobs'",
            )
        for key in file.keys() - {"jobs", "defaults"}:
            where = (
                "in a job or in 'defaults'"
                if key not in _OF_FILES
                else "in a file with one job"
            )
            self.issues.at(
                file[key],
                f"{key!r} cannot be combined with 'jobs': expected it {where}",
            )
        if "jobs" in file and not 0 < len(file["jobs"].value) <= MOST_JOBS:
            message = (
                f"{len(file['jobs'].value)} jobs: expected 1 to {MOST_JOBS:,}"
            )
            self.issues.at(file["jobs"], message)
        if self.issues:
            return None
        defaults = file["defaults"].value.there if "defaults" in file else {}
        jobs = [{**defaults, **job.there} for job in file["jobs"].value]
        first: dict[str, Located[str]] = {}
        for name in (job["name"] for job in jobs):
            before = first.setdefault(name.value, name)
            if before is not name:
                message = f"duplicate job name {name.value!r}, first on line {before.line}"
                self.issues.at(
                    name, f"{message}: expected a distinct name for each job"
                )
        specs = [
            spec
            for job in jobs
            for spec in self._specs(job, self._values(job))
        ]
        for job, spec in zip(jobs, specs, strict=False):
            for other in first.keys() & {*spec.after}:
                message = f"{other!r} starts at the same time: expected an earlier job"
                self.issues.at(job["after"], message)
        return JobBatch(tuple(specs))

    def _values(
        self, job: _Located, given: Overrides = NOTHING
    ) -> dict[str, Any]:
        values = {key: plain(each.value) for key, each in job.items()}
        for pair in _INSTEAD:
            if pair & given.values.keys():
                values = {
                    key: value
                    for key, value in values.items()
                    if key not in pair
                }
        values |= given.values
        if "graph" in values:
            try:
                values["graph"] = _graph(values["graph"], self.folder)
            except BadInput as error:
                self.issues.at(job.get("graph", job["name"]), error.message)
        return values

    def _written_out(
        self,
        job: _Located,
        file: _Located,
        given: Overrides,
    ) -> JobBatch | None:
        values = self._values(job, given)
        in_file = file["sweep"].value.there if "sweep" in file else {}
        sweep = {key: each.value for key, each in in_file.items()}
        sweep |= given.sweep
        for key, listed in sweep.items():
            if not listed or len({spelling for spelling, _ in listed}) < len(
                listed
            ):
                message = f"a sweep over {key}: expected distinct values"
                self.issues.at(file.get("sweep", job["name"]), message)
                return None
        array = given.array or (file["array"].value if "array" in file else 1)
        count = array * prod(map(len, sweep.values()))
        if count > MOST_JOBS:
            position = next(
                (file[key] for key in ("sweep", "array") if key in file),
                job["name"],
            )
            self.issues.at(
                position,
                f"this makes {count:,} jobs: expected at most {MOST_JOBS:,}",
            )
            return None
        specs: list[JobSpec] = []
        for swept in product(
            *([(key, *each) for each in sweep[key]] for key in sweep)
        ):
            for number in range(1, array + 1):
                one = values | {key: value for key, _, value in swept}
                suffixes = [f"{key}-{spelling}" for key, spelling, _ in swept]
                if array > 1:
                    suffixes.append(str(number))
                    one |= _of_array(one, number)
                one["name"] = "-".join(
                    [values["name"], *map(_nameable, suffixes)]
                )
                specs += self._specs(job, one)
            if self.issues:
                return None  # The others have the same mistakes.
        return JobBatch(tuple(specs), together=count == 1 and not sweep)

    def _specs(self, job: _Located, values: dict[str, Any]) -> list[JobSpec]:
        """The job with these values, or ``None`` after noting mistakes (positions: ``job``)."""
        if "command" in values:
            values.setdefault("trainer", "command")
        elif "model" in values:
            values.setdefault("trainer", "torch")
        spec = JobSpec(
            **{_FIELDS[key]: value for key, value in values.items()}
        )
        mistakes = [
            re.sub(r"\w+", lambda word: _KEYS.get(word[0], word[0]), words)
            for words in contradictions(spec)
        ]
        if spec.trainer == "torch" and spec.gradient_bytes:
            mistakes.append(
                "gradient: a job with a model takes the model's own"
            )
        if not {"workers", "hosts", "degrees"} & values.keys():
            mistakes.append("a job needs 'workers' or 'hosts'")
        if len(spec.name) > LONGEST_NAME:
            mistakes.append(
                f"the name {spec.name!r} is longer than {LONGEST_NAME} characters"
            )
        for words in mistakes:
            about = (
                job[word] for word in re.findall(r"\w+", words) if word in job
            )
            self.issues.at(next(about, job["name"]), words)
        return [] if self.issues else checked_specs([spec])


def _graph(text: str, folder: Path) -> str:
    """A built-in graph's name, or the full path of a graph file; ``BadInput`` for neither."""
    from patchlight.testbed.graphs import BUILTIN_NAMES, read_graph

    file = folder / text
    if text in BUILTIN_NAMES:
        return text
    if not file.exists():
        raise BadInput(
            f"graph {text!r} not found: expected a graph file, or {' or '.join(BUILTIN_NAMES)}"
        )
    read_graph(file)
    return str(file)


def _of_array(values: Mapping[str, Any], number: int) -> dict[str, Any]:
    """What distinguishes a job of an array: its seed, or a variable of its program."""
    if "command" in values:
        return {
            "environment": {
                **values.get("environment", {}),
                "ARRAY_INDEX": str(number),
            }
        }
    return {"seed": values.get("seed", 0) + number - 1}


def _nameable(text: str) -> str:
    return re.sub("[^A-Za-z0-9_.-]", "-", text.replace("µ", "u"))
