"""Defines the keys of a job file and their types: to read, for editors, and for options."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, WrapValidator, create_model

from patchlight.testbed import jobs, units
from patchlight.testbed.errors import BadInput, short
from patchlight.testbed.io.describe import described, published, table
from patchlight.testbed.io.keys import (
    Brief,
    Keys,
    Text,
    YesNo,
    choice,
    grouped,
    key,
    listing,
    mapping,
    matching,
    needed,
    number,
    one_or_more,
    quantity,
    whole,
)
from patchlight.testbed.io.reader import Number
from patchlight.testbed.labfile.values import MODEL, VARIABLE_NAME, GpuModel

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
        raise BadInput(f"Patchlight sets {text} for each rank: leave it out")
    return text


def _mount(text: str) -> dict[str, Any]:
    source, colon, rest = text.partition(":")
    target, _, how = rest.partition(":")
    if colon and how in ("", "ro", "rw"):
        for folder in (source, target):
            _FOLDER.take(folder)
        return {
            "source": source,
            "target": target,
            "read_only": how != "rw",
        }
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
    "a GPU or NIC of the lab, optionally with its server",
    "server1.gpu0",
    2 * 31,
)
_FOLDER = _line("a folder of the servers", "/srv/data", begin="/")
_DEGREE = Text(
    "a number of workers",
    lambda text: _workers(text) or _workers("0"),
    {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": jobs.MOST_WORKERS}
        ]
    },
    numbers=True,
    example="2",
)
_AFTER = _line("a job", "prepare")
_SHELL_LINE = _line("a shell line", "python train.py")
_SHORT_MOUNT = Text(
    "SOURCE:TARGET, or SOURCE:TARGET:rw", _mount, example="/srv/data:/data"
)

Folder = Annotated[str, _FOLDER]
Host = Annotated[str, _HOST]
Word = Annotated[str, _line("a word", "train.py", numbers=True)]
WorkerCount = Annotated[
    int, whole("a number of workers", 1, jobs.MOST_WORKERS)
]
Iterations = Annotated[
    int,
    whole("a number of iterations", 1, jobs.MOST_ITERATIONS),
    BeforeValidator(grouped),
]
Gradient = Annotated[
    int,
    _size(
        4,
        jobs.LARGEST_GRADIENT_BYTES,
        "a gradient's size",
        "553MB",
    ),
]
Seed = Annotated[int, whole("a seed", 0, jobs.LARGEST_SEED)]
SharedMemory = Annotated[
    int,
    _size(
        2**20,
        2**50,
        "a size of shared memory",
        "1GB",
    ),
]
Memory = Annotated[
    int,
    _size(
        16 * 2**20,
        2**44,
        "a size of memory",
        "64GB",
    ),
]
Cpus = Annotated[
    float,
    number(
        "a number of CPUs",
        ge=0.01,
        le=4096,
    ),
]
Requirement = Annotated[
    float,
    number(
        "a requirement",
        gt=0,
        le=1000,
    ),
]
Deadline = Annotated[float, _time(jobs.LONGEST_LIMIT_S, "a deadline", "2h")]
DarkLimit = Annotated[
    float, _time(jobs.LONGEST_DARK_S, "a time without a circuit", "10min")
]
StopGrace = Annotated[
    float, _time(jobs.LONGEST_STOP_GRACE_S, "a time to end", "2min")
]
Priority = Annotated[int, whole("a priority", -1000, 1000)]
Retries = Annotated[int, whole("a number of restarts", 0, jobs.MOST_RETRIES)]
ComputeTimes = Annotated[
    dict[
        GpuModel,
        Annotated[
            float, _time(jobs.LONGEST_COMPUTE_S, "a compute time", "500ms")
        ],
    ],
    mapping(
        "the compute time of an iteration on each GPU model",
        "{Tesla M40: 500ms, Titan V: 250ms}",
    ),
]
Environment = Annotated[
    dict[
        Annotated[str, replace(VARIABLE_NAME, take=_variable)],
        Annotated[
            str,
            Text(
                "a value",
                lambda text: text,
                {"maxLength": jobs.LONGEST_TEXT},
                numbers=True,
            ),
        ],
    ],
    mapping("environment variables", "{LEARNING_RATE: 0.1}"),
]


class MountKeys(Keys, title="a mount"):
    """A folder of the server, and where a container sees it."""

    makes = jobs.Mount

    source: Folder = needed("the folder on the server", "/srv/data")
    target: Folder = needed("where the worker sees it", "/data")
    read_only: YesNo = key("whether it is only read", "true")


Mounts = Annotated[
    tuple[
        Annotated[MountKeys, Brief(_SHORT_MOUNT, _mount)],
        ...,
    ],
    listing("mounts"),
]


class JobName(Keys):
    """The name of a job, if the file has one job."""

    name: Annotated[str, _NAME] = key("the job's name")


class Defaults(Keys, title="a job"):
    """What jobs of a file may share."""

    trainer: Annotated[
        jobs.Trainer, choice("a trainer", *get_args(jobs.Trainer))
    ] = key(
        "what runs: a ring all-reduce of synthetic gradients, a model trained by "
        "PyTorch, or your own program",
        "command if there is a command, torch if there is a model, else synthetic",
    )
    model: Annotated[str, _line("a model", "resnet50")] = key(
        "the model that PyTorch trains: the name of a built-in graph"
    )
    batch: Annotated[
        int,
        whole("a mini-batch", 1, jobs.LARGEST_BATCH),
        BeforeValidator(grouped),
    ] = key("samples of each worker in an iteration", "the graph's", "16")
    data: Folder = key(
        "the folder of the model's samples", "synthetic samples", "/srv/images"
    )
    workers: Annotated[
        int,
        Text(
            "a number of workers, or auto",
            _workers,
            {
                "anyOf": [
                    {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": jobs.MOST_WORKERS,
                    },
                    {"const": "auto"},
                ]
            },
            numbers=True,
            example="4",
        ),
    ] = key(
        "the number of GPUs; the placement policy chooses which. With auto, the partition policy "
        "chooses the number, and the elasticity policy changes it while the job runs"
    )
    degrees: Annotated[
        tuple[Annotated[int, _DEGREE], ...],
        one_or_more(_DEGREE),
        listing("numbers of workers"),
    ] = key("the numbers of workers that auto can choose", "any", "[2, 4]")
    hosts: Annotated[tuple[Host, ...], listing("hosts")] = key(
        "the GPUs, in ring order, instead of a number"
    )
    gpu_models: Annotated[
        tuple[GpuModel, ...], one_or_more(MODEL), listing("GPU models")
    ] = key("allowed GPU models", "any")
    iterations: Iterations = key("the number of iterations", example="100")
    gradient_bytes: Gradient = key(
        "the size of one gradient; a model has its own"
    )
    compute_s: ComputeTimes = key(
        "the compute time of an iteration, forward and backward, on each GPU model; with workers "
        "auto, that of one GPU, which the workers share; for a model it is measured by default"
    )
    seed: Seed = key(
        "the seed of a synthetic job's gradients or a model's samples", "0"
    )
    command: Annotated[
        tuple[Word, ...],
        Brief(_SHELL_LINE, lambda line: ["sh", "-c", line]),
        listing("words"),
    ] = key("the program of each worker: a shell line, or a list of words")
    image: Annotated[
        str,
        matching(
            "[A-Za-z0-9][A-Za-z0-9_./:@-]*",
            "an image",
            "a container image",
            "pytorch/pytorch",
        ),
    ] = key("the container image it runs in", "Patchlight's own image")
    environment: Environment = key("environment variables of the program")
    mounts: Mounts = key("folders mounted into containers")
    shared_memory_bytes: SharedMemory = key("the size of a worker's /dev/shm")
    memory_bytes: Memory = key(
        "the memory limit of a worker",
        "eight gradients and 1 GiB (synthetic jobs), or the worker's share of the server's",
    )
    cpus: Cpus = key("the number of CPUs that a worker may use", "all", "7.5")
    working_directory: Folder = key(
        "the program's working directory", example="/srv/vgg"
    )
    hold: Annotated[
        jobs.HowHeld, choice("a pause method", *get_args(jobs.HowHeld))
    ] = key(
        "how a program is paused while its circuits change: by the control protocol, "
        "frozen, or (auto) by the protocol if it speaks it",
        "auto",
    )
    graph: Annotated[str, _line("a graph", "vgg16")] = key(
        "a built-in computation graph, or a graph file"
    )
    requirement: Requirement = key(
        "the deadline, as a multiple of its time on one GPU", example="0.5"
    )
    deadline_s: Deadline = key(
        "the time from submission within which it must end"
    )
    priority: Priority = key(
        "jobs with a higher priority come earlier in the queue", "0", "10"
    )
    after: Annotated[
        tuple[Annotated[str, _AFTER], ...],
        one_or_more(_AFTER),
        listing("jobs"),
    ] = key("the jobs, by name or id, that must be done before it starts")
    retries: Retries = key("the number of restarts after a failure", "0", "3")
    checkpoint: Folder = key(
        "the folder of its checkpoints", example="/srv/checkpoints/vgg"
    )
    checkpoint_every: Iterations = key(
        "iterations between two checkpoints of a model", "100"
    )
    preemptible: YesNo = key(
        "whether a job earlier in the queue may interrupt it", "true"
    )
    topology: Annotated[str, _line("a topology policy", "regroup")] = key(
        "its circuits: unchanged (keep), all its GPUs under one packet switch (regroup), or a "
        "topology policy's choice",
        "the lab's policy",
    )
    placement: Annotated[str, _line("a policy", "regroup")] = key(
        "the policy that chooses its GPUs", "the lab's policy"
    )
    dark_limit_s: DarkLimit = key(
        "the longest pause without a circuit", "10min"
    )
    stop_grace_s: StopGrace = key(
        "the time from SIGTERM to SIGKILL, for a worker to save", "30s"
    )
    transport: Annotated[
        jobs.Transport, choice("a transport", *get_args(jobs.Transport))
    ] = key(
        "the transport of a synthetic job's gradients: TCP or RDMA (RoCE v2)",
        "tcp",
    )


class Job(Defaults, JobName, title="a job"):
    """One of several jobs."""

    name: Annotated[str, _NAME] = needed("the job's name")


_SWEPT = {
    "workers": WorkerCount,
    "iterations": Iterations,
    "gradient": Gradient,
    "seed": Seed,
    "shared_memory": SharedMemory,
    "memory": Memory,
    "cpus": Cpus,
    "requirement": Requirement,
    "deadline": Deadline,
    "priority": Priority,
    "retries": Retries,
    "dark_limit": DarkLimit,
}


def _spelled(value: Any, read: Callable[[Any], Any]) -> tuple[str, Any]:
    """A value with its spelling in the file: ``("553MB", 553000000)``."""
    text = value.text if isinstance(value, Number) else str(value)
    return text, read(value)


def _values_of(name: str, type: Any) -> Any:
    spelled = Annotated[type, WrapValidator(_spelled)]
    values = Annotated[tuple[spelled, ...], listing("values")]
    return values, key(f"a job for each of these values of {name}", "none")


Sweep = create_model(
    "Sweep",
    __base__=Keys,
    __cls_kwargs__={"title": "a sweep"},
    **{name: _values_of(name, type) for name, type in _SWEPT.items()},
)
ArrayLength = Annotated[int, whole("a number of jobs", 1, jobs.MOST_JOBS)]


class SeveralJobs(Keys, title="a job file"):
    """The keys of a file by which it makes several jobs."""

    jobs: Annotated[tuple[Job, ...], listing("jobs")] = key(
        "several jobs that start together, instead of one at the top",
        example="[{name: a, workers: 2}, {name: b, workers: 2}]",
    )
    defaults: Defaults = key(
        "values for keys that a job leaves out",
        "none",
        "{iterations: 100, gradient: 553MB}",
    )
    sweep: Sweep = key(  # type: ignore[valid-type]
        "one job per value, or per combination of values, each submitted on its own",
        "none",
        "{workers: [2, 4, 6]}",
    )
    array: ArrayLength = key(
        "the number of copies, each submitted on its own", "1", "10"
    )


class JobFile(SeveralJobs, Defaults, JobName, title="a job file"):
    """The keys of a whole file."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a job file, for editors.

    It covers keys and the form of values; only ``read_jobs`` checks how they combine.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Patchlight job file",
        **published(described(JobFile)),
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
        f"## A job\n\n{table(described(Job))}",
        f"## `mounts[]`: a mount\n\n{table(described(MountKeys))}",
        f"## Several jobs\n\n{table(described(SeveralJobs))}",
        f"## `sweep`: a sweep\n\n{table(described(Sweep))}",
    )
    return "\n".join(parts)
