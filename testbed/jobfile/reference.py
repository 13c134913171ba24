"""The reference of job files, made of their schema.

``python -m patchlight.testbed.jobfile.reference`` prints it as Markdown.
"""

from patchlight.testbed.io.reference import table
from patchlight.testbed.jobfile.schema import JOB, MOUNT, OF_FILES, SWEEP

_HEAD = """\
A job file is YAML or JSON in UTF-8: the keys of one job, or several jobs under `jobs`. Every key
that is not listed here is a mistake, as is a key that stands twice. `patchlight job check FILE`
names all mistakes with line and column, and needs no controller; `patchlight job schema` prints a
JSON Schema for editors.
"""


def job_file_reference() -> str:
    """Each group of keys as a table, as Markdown."""
    parts = (
        _HEAD,
        f"## A job\n\n{table(JOB)}",
        f"## `mounts[]`: {MOUNT.what}\n\n{table(MOUNT)}",
        f"## Several jobs\n\n{table(OF_FILES)}",
        f"## `sweep`: {SWEEP.what}\n\n{table(SWEEP)}",
    )
    return "\n".join(parts)


if __name__ == "__main__":
    print(job_file_reference())
