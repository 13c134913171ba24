"""Defines the keys of a job file and their types: to read, for editors, and for options."""

import re
from dataclasses import replace
from typing import Any, get_args

from patchlight.testbed import jobs, units
from patchlight.testbed.errors import BadInput, short
from patchlight.testbed.io.fields import (
    Group,
    Key,
    ListOf,
    Text,
    Whole,
    choice,
    matching,
    required,
)
from patchlight.testbed.io.forms import (
    Either,
    MapOf,
    Number,
    Spelled,
    YesNo,
    quantity,
    table,
)
from patchlight.testbed.labfile.values import MODEL, VARIABLE_NAME

LONGEST_NAME = 41


def _time(
    longest_s: float,
    what: str,
    example: str,
) -> Text:
    def take(text: str) -> float:
        time_s = units.parse_time(text)
        if 0 < time_s <= longest_s:
            return time_s
        most = units.format_time(longest_s)
        raise BadInput(
            f"{text!r} is not {what}: expected more than 0s, at most {most}"
        )

    return quantity(
        take,
        units.TIME,
        what,
        example,
    )


def _size(
    least_bytes: int,
    most_bytes: int,
    what: str,
    example: str,
) -> Text:
    def take(text: str) -> int:
        size_bytes = units.parse_size(text)
        if least_bytes <= size_bytes <= most_bytes:
            return size_bytes
        bounds = " to ".join(map(units.format_size, (least_bytes, most_bytes)))
        raise BadInput(f"{text!r} is not {what}: expected {bounds}")

    return quantity(
        take,
        units.SIZE,
        what,
        example,
    )


def _line(
    what: str,
    example: str,
    begin: str = "",
    *,
    numbers: bool = False,
) -> Text:
    def take(text: str) -> str:
        if (
            text.startswith(begin)
            and text
            and "\0" not in text
            and len(text) <= jobs.LONGEST_TEXT
        ):
            return text
        found = f"{short(text)!r} is not {what}"
        raise BadInput(
            f"{found}: expected 1 to {jobs.LONGEST_TEXT} characters, like {example!r}"
        )

    json = {"minLength": 1, "maxLength": jobs.LONGEST_TEXT}
    return Text(
        what,
        take,
        json,
        example=example,
        numbers=numbers,
    )


def _one_or_more(item: Text, what: str) -> Either:
    return Either(
        replace(item, take=lambda text: (item.take(text),)), ListOf(item, what)
    )


def _workers(text: str) -> int:
    if text == "auto":
        return 0
    if (
        re.fullmatch("[0-9]{1,9}", text)
        and 1 <= int(text) <= jobs.MOST_WORKERS
    ):
        return int(text)
    raise BadInput(
        f"{short(text)!r} workers: expected 1 to {jobs.MOST_WORKERS}, or auto"
    )


def _variable(text: str) -> str:
    VARIABLE_NAME.take(text)
    if jobs.is_reserved(text):
        raise BadInput(
            f"{text} cannot be set: Patchlight sets it for each rank"
        )
    return text


def _mount(text: str) -> jobs.Mount:
    source, colon, rest = text.partition(":")
    target, _, how = rest.partition(":")
    if colon and how in ("", "ro", "rw"):
        for folder in (source, target):
            _FOLDER.take(folder)
        return jobs.Mount(source, target, read_only=how != "rw")
    raise BadInput(
        f"{short(text)!r} is not a mount: expected SOURCE:TARGET, or SOURCE:TARGET:rw"
    )


_NAME = matching(
    jobs.JOB_NAME.strip("^$"),
    "a job's name",
    f"a letter or digit, then letters, digits, '_', '.' or '-', at most {LONGEST_NAME} in all",
    "vgg",
    LONGEST_NAME,
)
_HOST = matching(
    r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z][A-Za-z0-9_-]*)?",
    "a host",
    "a GPU or NIC of the lab, maybe with its server",
    "server1.gpu0",
    2 * 31,
)
_FOLDER = _line("a folder of the servers", "/srv/data", begin="/")
_WORD = _line("a word", "train.py", numbers=True)
_VALUE = Text(
    "a value",
    lambda text: text,
    {"maxLength": jobs.LONGEST_TEXT},
    numbers=True,
)
_WORKER_COUNT = Whole("how many workers", 1, jobs.MOST_WORKERS)
_MODEL_NAME = _line("a model", "resnet50")
_BATCH = Whole(
    "a mini-batch",
    1,
    jobs.LARGEST_BATCH,
    grouped=True,
)
_ITERATIONS = Whole(
    "how many iterations",
    1,
    jobs.MOST_ITERATIONS,
    grouped=True,
)
_GRADIENT = _size(
    4,
    jobs.LARGEST_GRADIENT_BYTES,
    "a gradient's size",
    "553MB",
)
_SEED = Whole("a seed", 0, jobs.LARGEST_SEED)
_SHARED_MEMORY = _size(
    2**20,
    2**50,
    "a size of shared memory",
    "1GB",
)
_MEMORY = _size(
    16 * 2**20,
    2**44,
    "a size of memory",
    "64GB",
)
_CPUS = Number(
    "a number of CPUs",
    lowest=0.01,
    highest=4096,
)
_REQUIREMENT = Number(
    "a requirement",
    above=0,
    highest=1000,
)
_DEADLINE = _time(jobs.LONGEST_LIMIT_S, "a deadline", "2h")
_DARK_LIMIT = _time(jobs.LONGEST_DARK_S, "a time without a circuit", "10min")
_STOP_GRACE = _time(jobs.LONGEST_STOP_GRACE_S, "a time to end", "2min")
_PRIORITY = Whole("a priority", -1000, 1000)
_RETRIES = Whole("how often", 0, jobs.MOST_RETRIES)
_COMMAND = Either(
    replace(
        _line("a shell line", "python train.py"),
        take=lambda line: ("sh", "-c", line),
    ),
    ListOf(_WORD, "words"),
)
MOUNT = Group(
    "a mount",
    required(
        "source",
        _FOLDER,
        "the folder on the server",
        "/srv/data",
    ),
    required(
        "target",
        _FOLDER,
        "where the worker sees it",
        "/data",
    ),
    Key(
        "read_only",
        YesNo(),
        "whether it is only read",
        default="true",
    ),
)
_SHORT_MOUNT = Text(
    "SOURCE:TARGET, or SOURCE:TARGET:rw", _mount, example="/srv/data:/data"
)

JOB = Group(
    "a job",
    required("name", _NAME, "the job's name"),
    Key(
        "trainer",
        choice("a trainer", *get_args(jobs.Trainer)),
        "what runs: a ring all-reduce of synthetic gradients, a model trained by PyTorch, or your "
        "own program",
        default="command if there is a command, torch if there is a model, else synthetic",
    ),
    Key(
        "model",
        _MODEL_NAME,
        "the model that PyTorch trains: the name of a built-in graph",
    ),
    Key(
        "batch",
        _BATCH,
        "samples of each worker in an iteration",
        "that of the graph",
        "16",
    ),
    Key(
        "data",
        _FOLDER,
        "the folder of the model's samples",
        "synthetic samples",
        "/srv/images",
    ),
    Key(
        "workers",
        Text(
            "a number of workers, or auto",
            _workers,
            {"anyOf": [_WORKER_COUNT.schema(), {"const": "auto"}]},
            numbers=True,
            example="4",
        ),
        "how many GPUs it gets; the placement policy chooses which. With auto, the partition "
        "policy chooses how many, and the elasticity policy changes that while it runs",
    ),
    Key(
        "degrees",
        _one_or_more(
            Text(
                "a number of workers",
                lambda text: _workers(text) or _workers("0"),
                {"anyOf": [_WORKER_COUNT.schema()]},
                numbers=True,
                example="2",
            ),
            "numbers of workers",
        ),
        "the numbers of workers that auto may choose",
        default="any",
        example="[2, 4]",
    ),
    Key(
        "hosts",
        ListOf(_HOST, "hosts"),
        "its GPUs, in ring order, instead of a number",
    ),
    Key(
        "gpu_models",
        _one_or_more(MODEL, "GPU models"),
        "the only GPU models it may get",
        "any",
    ),
    Key(
        "iterations",
        _ITERATIONS,
        "how many iterations it runs",
        example="100",
    ),
    Key(
        "gradient",
        _GRADIENT,
        "the size of one gradient; not for a model, whose size is known",
    ),
    Key(
        "compute",
        MapOf(
            MODEL,
            _time(jobs.LONGEST_COMPUTE_S, "a compute time", "500ms"),
            "the compute time of an iteration on each GPU model",
            "{Tesla M40: 500ms, Titan V: 250ms}",
        ),
        "how long an iteration computes, forward and backward, on each GPU model; with workers "
        "auto, on one GPU: its workers share that time; for a model it is measured unless given",
    ),
    Key(
        "seed",
        _SEED,
        "the seed of a synthetic job's gradients or a model's samples",
        default="0",
    ),
    Key(
        "command",
        _COMMAND,
        "the program of each worker: a shell line, or a list of words",
    ),
    Key(
        "image",
        matching(
            "[A-Za-z0-9][A-Za-z0-9_./:@-]*",
            "an image",
            "a container image",
            "pytorch/pytorch",
        ),
        "the container image it runs in",
        default="Patchlight's own image",
    ),
    Key(
        "environment",
        MapOf(
            replace(VARIABLE_NAME, take=_variable),
            _VALUE,
            "environment variables",
            "{LEARNING_RATE: 0.1}",
        ),
        "environment variables of the program",
    ),
    Key(
        "mounts",
        ListOf(Either(_SHORT_MOUNT, MOUNT), "mounts"),
        "folders mounted into containers",
    ),
    Key("shared_memory", _SHARED_MEMORY, "the size of a worker's /dev/shm"),
    Key(
        "memory",
        _MEMORY,
        "the most memory that a worker may use",
        default="eight gradients and 1 GiB (synthetic jobs), or the worker's share of the server's",
    ),
    Key(
        "cpus",
        _CPUS,
        "how many CPUs of its server a worker may use",
        "all",
        "7.5",
    ),
    Key(
        "working_directory",
        _FOLDER,
        "the program's working directory",
        example="/srv/vgg",
    ),
    Key(
        "hold",
        choice("how to hold it", *get_args(jobs.HowHeld)),
        "how a program is paused while its circuits change: by the control protocol, frozen, or "
        "(auto) by the protocol if it speaks it",
        default="auto",
    ),
    Key(
        "graph",
        _line("a graph", "vgg16"),
        "a built-in computation graph, or a graph file",
    ),
    Key(
        "requirement",
        _REQUIREMENT,
        "its deadline, in times of its time on a GPU",
        example="0.5",
    ),
    Key("deadline", _DEADLINE, "how long after its submission it has to end"),
    Key(
        "priority",
        _PRIORITY,
        "a job with a higher priority is earlier in the queue",
        "0",
        "10",
    ),
    Key(
        "after",
        _one_or_more(_line("a job", "prepare"), "jobs"),
        "the jobs, by name or id, that must be done before it starts",
    ),
    Key(
        "retries",
        _RETRIES,
        "how often it is started again after it failed",
        "0",
        "3",
    ),
    Key(
        "checkpoint",
        _FOLDER,
        "the folder of its checkpoints",
        example="/srv/checkpoints/vgg",
    ),
    Key(
        "checkpoint_every",
        _ITERATIONS,
        "iterations between two checkpoints of a model",
        "100",
    ),
    Key(
        "preemptible",
        YesNo(),
        "whether a job earlier in the queue may interrupt it",
        "true",
    ),
    Key(
        "topology",
        _line("a topology policy", "regroup"),
        "its circuits: as they are (keep), all its GPUs under one packet switch (regroup), or as a "
        "topology policy of that name decides",
        default="the lab's policy",
    ),
    Key(
        "placement",
        _line("a policy", "regroup"),
        "what chooses its GPUs",
        "the lab's policy",
    ),
    Key(
        "dark_limit",
        _DARK_LIMIT,
        "how long it may pause without a circuit",
        "10min",
    ),
    Key(
        "stop_grace",
        _STOP_GRACE,
        "the time from SIGTERM to SIGKILL, for a worker to save",
        "30s",
    ),
    Key(
        "transport",
        choice("a transport", *get_args(jobs.Transport)),
        "what carries a synthetic job's gradients: TCP, or RDMA (RoCE v2)",
        default="tcp",
    ),
)
KEYS = {key.name: key for key in JOB.keys}


def _swept(name: str) -> Key:
    values = ListOf(
        Spelled(_WORKER_COUNT if name == "workers" else KEYS[name].type),
        "values",
    )
    return Key(
        name,
        values,
        f"a job for each of these values of {name}",
        default="none",
    )


SWEEP = Group(
    "a sweep",
    *map(
        _swept,
        (
            "workers",
            "iterations",
            "gradient",
            "seed",
            "shared_memory",
            "memory",
            "cpus",
        ),
    ),
    *map(
        _swept,
        ("requirement", "deadline", "priority", "retries", "dark_limit"),
    ),
)
ARRAY = Whole("how many jobs", 1, jobs.MOST_JOBS)
_COMMON = [
    replace(key, required=False) for key in JOB.keys if key.name != "name"
]
DEFAULTS = Group("a job", *_COMMON)
OF_FILES = Group(
    "a job file",
    Key(
        "jobs",
        ListOf(JOB, "jobs"),
        "several jobs that start together, instead of one at the top",
        example="[{name: a, workers: 2}, {name: b, workers: 2}]",
    ),
    Key(
        "defaults",
        DEFAULTS,
        "the values of the keys that a job does not give",
        default="none",
        example="{iterations: 100, gradient: 553MB}",
    ),
    Key(
        "sweep",
        SWEEP,
        "one job for each value, or each combination of values, submitted separately",
        default="none",
        example="{workers: [2, 4, 6]}",
    ),
    Key(
        "array",
        ARRAY,
        "how many times the job is submitted, each time alone",
        "1",
        "10",
    ),
)
FILE = Group(
    "a job file",
    *(replace(key, required=False) for key in JOB.keys),
    *OF_FILES.keys,
)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a job file, for editors.

    It covers keys and the form of values; only ``read_jobs`` checks how they combine.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Patchlight job file",
        **FILE.schema(),
        "oneOf": [{"required": ["name"]}, {"required": ["jobs"]}],
    }


_REFERENCE_HEAD = """\
A job file is YAML or JSON in UTF-8: the keys of one job, or several jobs under `jobs`. Unknown and
duplicate keys are mistakes. `patchlight job submit FILE --dry-run` lists all mistakes with line and
column, also without a controller; `patchlight lab check --schema job` prints a JSON Schema for
editors.
"""


def job_file_reference() -> str:
    """Each group of keys as a table, as Markdown."""
    parts = (
        _REFERENCE_HEAD,
        f"## A job\n\n{table(JOB)}",
        f"## `mounts[]`: {MOUNT.what}\n\n{table(MOUNT)}",
        f"## Several jobs\n\n{table(OF_FILES)}",
        f"## `sweep`: {SWEEP.what}\n\n{table(SWEEP)}",
    )
    return "\n".join(parts)
