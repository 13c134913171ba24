"""Traces in all formats, with invented numbers, and what is wrong with broken ones."""

import gzip
import io
import json
import math
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchlight.emulation.simulator.traces.files import (
    LAWS,
    is_drawn,
    load_trace,
    read_trace,
)
from patchlight.emulation.simulator.traces.model import (
    TraceFileError,
    TraceJob,
)
from patchlight.testbed.errors import BadInput
from tests.support.tables import below, unmarked

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2020-01-02 00:00:30,100.0,4,400.0,blue
2020-01-02 00:00:00,50.5,1,50.5,red
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u1,vcA,2,8,1,COMPLETED,2020-06-09 10:00:00,2020-06-09 10:00:05,2020-06-09 10:01:05,60,5
8,u1,vcB,8,32,1,FAILED,2020-06-09 10:00:09,2020-06-09 10:00:09,2020-06-09 10:00:12,3,0
"""
PAI = """\
job_id,user,num_cpu,num_gpu,num_inst,submit_time,duration,gpu_type
a,u,6,0.5,3,40,100,T4
b,u,6,2,1,10.0,200.0,V100
"""
OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-1,88000,327680,8,1000,,Burstable,Succeeded,100,1300,150
pod-2,4000,15258,1,220,V100M16|V100M32,BE,Running,110,160.5,110
"""
SPOT = """\
job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
7,13,A10,20,1,1,0,2764799,HP
9,57,A100-SXM4-80GB,15,0.5,9,60,41060,Spot
"""
DLRM = """\
instance_sn,role,app_name,cpu_request,gpu_request,max_instance_per_node,creation_time,scheduled_time,deletion_time
instance_7,HN,app_0,12,1,8,1000.0,1010.0,2010.5
instance_9,HN,app_3,12,1,-1,1005.0,1005.0,1135.0
"""
SWF = """\
; Version: 2.2
; MaxNodes: 4
; MaxProcs: 16
; UnixStartTime: 1700000000

  1  0  5  60  8 -1 -1  8  120 -1  1  3 1 -1 1  2 -1 -1
  2 30 -1 12.5 -1 -1 -1 4  -1 -1  0 -1 1 -1 1 -1 -1 -1
  2 30 -1  6.5 -1 -1 -1 4  -1 -1  2 -1 1 -1 1 -1 -1 -1
"""
SACCT = "\n".join(
    (
        "JobID|Submit|Start|End|Elapsed|ElapsedRaw|State|AllocTRES|User|Partition",
        "12|2024-01-02T03:04:05|2024-01-02T03:05:00|2024-01-02T03:06:00|00:01:00|60|COMPLETED|"
        "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1|u1|p1",
        "12.batch|2024-01-02T03:05:00|2024-01-02T03:05:00|2024-01-02T03:06:00|00:01:00|60|"
        "COMPLETED|cpu=8,gres/gpu=4||",
        "13_4|2024-01-02T03:04:15|2024-01-02T03:05:00|2024-01-03T03:05:00|1-00:00:00|86400|"
        "CANCELLED by 7|gres/gpu:a=2,gres/gpu:b=1|u2|p1",
        "",
    )
)
PAI_TASKS = """\
j1,ps,1.0,Terminated,100.0,160.0,600.0,29.3,,
j1,worker,3.0,Terminated,110.0,190.0,600.0,29.3,50.0,MISC
j2,tensorflow,1.0,Failed,90.0,95.0,600.0,29.3,200.0,V100
"""
PAI_JOBS = """\
j1,i1,u1,Terminated,70.0,190.0
j2,i2,u2,Failed,90.0,95.0
cpu-only,i3,u2,Terminated,1.0,95.0
"""


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    detail = [
        {"ip": f"m{n}", "gpus": [f"gpu{g}" for g in range(held)]}
        for n, held in enumerate(gpus)
    ]
    return {"start_time": start, "end_time": end, "detail": detail}


LOG: list[dict[str, Any]] = [
    {"status": "Pass", "vc": "v1", "jobid": "application_1", "user": "u",
     "submitted_time": "2020-01-01 00:01:00",
     "attempts": [attempt("2020-01-01 00:02:00", "2020-01-01 00:02:10", 8, 4),
                  attempt("2020-01-01 00:03:00", "2020-01-01 00:03:30", 8, 8)]},
    {"status": "Killed", "vc": "v2", "jobid": "application_2", "user": "u",
     "submitted_time": "2020-01-01 00:00:00",
     "attempts": [attempt("2020-01-01 00:00:00", "2020-01-01 01:00:00", 1)]},
]  # fmt: skip


def written(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def plain(jobs: list[TraceJob]) -> list[tuple[str, float, float, int, str]]:
    assert all(math.isnan(job.deadline_s) for job in jobs)
    return [job[:5] for job in jobs]


def test_philly_as_csv_is_sorted_and_says_so(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, PHILLY))
    assert trace.format == "philly-csv"
    assert plain(trace.jobs) == [
        ("row-3", 0, 50.5, 1, "red"),
        ("row-2", 30, 100, 4, "blue"),
    ]
    assert trace.out_of_order == 1
    assert (
        "1 of 2 jobs came after a job that was submitted later"
        in trace.notes[0]
    )


def test_helios(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, HELIOS))
    assert trace.format == "helios"
    assert plain(trace.jobs) == [("7", 0, 60, 2, "vcA"), ("8", 9, 3, 8, "vcB")]
    assert (trace.out_of_order, trace.notes) == (0, ())


@pytest.mark.parametrize(
    ("text", "users"),
    [
        (PHILLY, ["", ""]),
        (HELIOS, ["u1", "u1"]),
        (PAI, ["u", "u"]),
        (OPENB, ["", ""]),
        (SPOT, ["13", "57"]),
        (DLRM, ["app_0", "app_3"]),
        (SWF, ["3", ""]),
        (SACCT, ["u1", "u2"]),
        (json.dumps(LOG), ["u", "u"]),
    ],
)
def test_whose_jobs_are(tmp_path: Path, text: str, users: list[str]) -> None:
    assert [
        job.user for job in load_trace(written(tmp_path, text)).jobs
    ] == users


def test_whose_jobs_are_stands_in_the_job_table_of_pai(tmp_path: Path) -> None:
    written(tmp_path, PAI_JOBS, "pai_job_table.csv")
    written(tmp_path, PAI_TASKS, "pai_task_table.csv")
    found = {job.name: job.user for job in load_trace(tmp_path).jobs}
    assert found == {"j1": "u1", "j2": "u2"}


def test_helios_with_the_columns_in_another_order_and_more_of_them(
    tmp_path: Path,
) -> None:
    text = "jobname,duration,submit_time,vc,gpu_num,job_id\nx,5,100,v,1,k\n"
    assert plain(read_trace(written(tmp_path, text))) == [("k", 0, 5, 1, "v")]


def test_pai_merged_rounds_shared_gpus_up(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, PAI))
    assert trace.format == "pai"
    assert plain(trace.jobs) == [("b", 0, 200, 2, ""), ("a", 30, 100, 2, "")]


def test_openb_and_spot_gpus_of_alibaba(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, OPENB))
    assert trace.format == "openb"
    # A pod lasts from when it was scheduled.
    assert plain(trace.jobs) == [
        ("pod-1", 0, 1150, 8, ""),
        ("pod-2", 10, 50.5, 1, ""),
    ]
    pods = "pod-3,9810,41560,1,1000,,LS,Pending,120,180,\npod-4,1,1,0,0,,BE,Running,120,180,120\n"
    path = written(
        tmp_path, OPENB + pods + "pod-5,1,1,1,9,,BE,Failed,120,180,180\n"
    )
    with pytest.raises(TraceFileError) as caught:
        read_trace(path)
    assert [(each.line, each.column, each.message) for each in caught.value.issues] == [
        (4, 45, "scheduled_time is missing: expected a date and time, like 2017-10-09 07:01:55, or "
                "seconds"),
        (5, 11, "num_gpu is 0: a job without a GPU"),
        (6, 34, "deletion_time - scheduled_time is 0 s: expected more than 0"),
    ]  # fmt: skip
    assert len(load_trace(path, skip_bad=True).jobs) == 2
    spot = load_trace(written(tmp_path, SPOT))
    assert spot.format == "spot-gpu"
    assert plain(spot.jobs) == [
        ("7", 0, 2764799, 1, ""),
        ("9", 60, 41060, 5, ""),
    ]


def test_gpus_of_alibabas_recommenders(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, DLRM))
    assert trace.format == "dlrm"
    assert plain(trace.jobs) == [
        ("instance_7", 0, 1000.5, 1, ""),
        ("instance_9", 5, 130, 1, ""),
    ]
    # One that was there before the trace or outlives it, and one of a node without GPUs.
    more = "i1,HN,a,12,1,8,,,9.0\ni2,HN,a,12,1,8,1.0,2.0,\ni3,CN,a,12,0,8,1.0,2.0,9.0\n"
    with pytest.raises(TraceFileError) as caught:
        read_trace(written(tmp_path, DLRM + more))
    found = [
        (each.line, each.column, each.message[:24])
        for each in caught.value.issues
    ]
    assert found == [
        (4, 16, "creation_time is missing"),
        (5, 24, "deletion_time is missing"),
        (6, 12, "gpu_request is 0: a job "),
    ]


def test_the_standard_workload_format(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, SWF, "log.txt"))
    assert trace.format == "swf"
    # Of an unknown number of processors it is what was asked for; status 2 is a part of a run.
    assert plain(trace.jobs) == [("1", 0, 60, 8, "2"), ("2", 30, 12.5, 4, "")]
    assert any("its processors count as GPUs" in note for note in trace.notes)
    bare = SWF.partition("\n\n")[2]
    assert plain(read_trace(written(tmp_path, bare))) == plain(trace.jobs)
    # As in the Parallel Workloads Archive, where names in headers are in any encoding.
    header = "; Information: Universit\u00e9 de Gen\u00e8ve \f\x1c\n"
    for encoding in ("latin-1", "utf-8", "utf-8-sig", "cp1252"):
        (tmp_path / "log.swf").write_bytes((header + SWF).encode(encoding))
        assert plain(read_trace(tmp_path / "log.swf")) == plain(trace.jobs)


def test_what_sacct_prints(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, SACCT))
    assert trace.format == "sacct"
    jobs = [("12", 0, 60, 4, "p1"), ("13_4", 10, 86400, 3, "p1")]
    assert plain(trace.jobs) == jobs
    # As sacct -p prints it, and with other columns for the same.
    parsable = "".join(f"{line}|\n" for line in SACCT.splitlines())
    assert plain(read_trace(written(tmp_path, parsable))) == jobs
    elapsed = SACCT.replace("ElapsedRaw", "other")
    assert plain(read_trace(written(tmp_path, elapsed))) == jobs
    ends = elapsed.replace("Elapsed|", "another|")
    assert plain(read_trace(written(tmp_path, ends))) == jobs
    asked = SACCT.replace("AllocTRES", "ReqTRES").replace(
        "JobID|", "JobIDRaw|"
    )
    assert plain(read_trace(written(tmp_path, asked))) == jobs


def test_only_ends_of_lines_end_lines(tmp_path: Path) -> None:
    """Names of users and jobs may have other line breaks of Unicode."""
    odd = "a\f\v\x1c\x85\u2028b"
    for text in (SACCT, DLRM):
        wanted = plain(read_trace(written(tmp_path, text)))
        named = text.replace("|p1", f"|{odd}").replace(",a,", f",{odd},")
        for end in ("\n", "\r\n", "\r"):
            path = tmp_path / "odd"
            path.write_bytes(named.replace("\n", end).encode())
            assert [job[:4] for job in plain(read_trace(path))] == [
                job[:4] for job in wanted
            ]


# Rows that are broken, below what is said of them.
BROKEN_SWF = below("""
the submit time is missing
    3 ‸-1 0 5 1 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1
the run time is missing
    3 40 0 ‸-1 1 -1 -1 1 -1 -1 5 1 1 1 1 1 -1 -1
the run time is 0 s
     3 40 0 ‸0 1 -1 -1 1 -1 -1 5 1 1 1 1 1 -1 -1
the number of processors is mis
    3 40 0 5 -1 -1 -1 ‸-1 -1 -1 1 1 1 1 1 1 -1 -1
the run time is 'x'
    3 40 0 ‸x 1 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1
expected a whole number
    3 40 0 5 ‸1.5 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1
job '1' appears twice
    ‸1 40 0 5 1 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1
5 values, expected the 18 of the format
    ‸3 40 0 5 1
""")
BROKEN_SACCT = below("""
State is PENDING
    14|2024-01-02T03:04:05|Unknown|Unknown|00:00:00|0|‸PENDING||u|p
State is COMPLETING
    14|2024-01-02T03:04:05|x|x|x|5|‸COMPLETING|gres/gpu=1|u|p
State is missing
    14|2024-01-02T03:04:05|x|x|x|5|‸|gres/gpu=1|u|p
a heterogeneous job
    ‸14+1|2024-01-02T03:04:05|x|x|x|5|FAILED|gres/gpu=1|u|p
Submit is missing
    14|‸Unknown|x|x|x|5|FAILED|gres/gpu=1|u|p
ElapsedRaw is 0 s
    14|2024-01-02T03:04:05|x|x|x|‸0|CANCELLED by 1|gres/gpu=1|u|p
a job without a GPU
    14|2024-01-02T03:04:05|x|x|x|5|FAILED|‸cpu=8,node=1|u|p
    14|2024-01-02T03:04:05|x|x|x|5|FAILED|‸|u|p
gres/gpu is 'a'
    14|2024-01-02T03:04:05|x|x|x|5|FAILED|‸gres/gpu=a|u|p
job '12' appears twice
    ‸12|2024-01-02T03:04:05|x|x|x|5|FAILED|gres/gpu=1|u|p
2 values, expected 10
    ‸14|2024-01-02T03:04:05
""")


@pytest.mark.parametrize(
    ("log", "marked", "message"),
    [
        *((SWF, *row) for row in BROKEN_SWF),
        *((SACCT, *row) for row in BROKEN_SACCT),
    ],
)
def test_a_broken_line_of_a_log(
    tmp_path: Path, log: str, marked: str, message: str
) -> None:
    text, line, column = unmarked(f"{log}{marked}\n")
    path = written(tmp_path, text)
    with pytest.raises(TraceFileError) as caught:
        read_trace(path)
    (mistake,) = caught.value.issues
    assert (mistake.line, mistake.column) == (line, column)
    assert message in mistake.message
    assert len(read_trace(path, skip_bad=True)) == 2


def test_columns_that_sacct_was_not_asked_for_are_named_with_the_command(
    tmp_path: Path,
) -> None:
    for column in ("Submit", "AllocTRES"):
        path = written(tmp_path, SACCT.replace(column, "Other"))
        with pytest.raises(
            TraceFileError,
            match=r":1:1: the columns are JobID, .*sacct -a -X -P",
        ):
            read_trace(path, skip_bad=True)
    broken = SACCT.replace("ElapsedRaw", "a").replace("1-00:00:00", "1 day")
    with pytest.raises(
        TraceFileError, match=r":4:66: Elapsed is '1 day': expected \[DAYS-\]"
    ):
        read_trace(written(tmp_path, broken))
    ends = SACCT.replace("ElapsedRaw", "a").replace("Elapsed|", "b|")
    with pytest.raises(TraceFileError, match=r":4:26: Start is missing"):
        read_trace(
            written(
                tmp_path, ends.replace("15|2024-01-02T03:05:00", "15|None")
            )
        )


@pytest.mark.parametrize(
    "text",
    [PHILLY, HELIOS, PAI, OPENB, SPOT, DLRM, SWF, SACCT, json.dumps(LOG)],
)
def test_each_format_is_read_as_gzip_packs_it(
    tmp_path: Path, text: str
) -> None:
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert plain(read_trace(packed)) == plain(
        read_trace(written(tmp_path, text))
    )


def test_packed_files_that_are_not_whole_or_hold_others_are_refused(
    tmp_path: Path,
) -> None:
    for table, text in (
        ("pai_job_table.csv", PAI_JOBS),
        ("pai_task_table.csv", PAI_TASKS),
    ):
        (tmp_path / f"{table}.gz").write_bytes(gzip.compress(text.encode()))
    assert plain(read_trace(tmp_path)) == [
        ("j1", 0, 90, 2, ""),
        ("j2", 20, 5, 2, ""),
    ]
    packed = gzip.compress(PAI_TASKS.encode())
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(written(tmp_path, PAI_TASKS), "pai_task_table.csv")
    for content, said in (
        (packed[:-9], "reading the trace .*ended before"),
        (packed[:30] + b"!!!" + packed[33:], "reading the trace .*"),
        (archive.getvalue(), r"trace\.gz is a tar archive"),
        (
            gzip.compress(bytes(2**20)) * 513,
            "longer than 512 MiB once it is unpacked",
        ),
    ):
        (tmp_path / "trace.gz").write_bytes(content)
        with pytest.raises(BadInput, match=said):
            read_trace(tmp_path / "trace.gz")


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    twice = HELIOS.replace("cpu_num", "user")
    with pytest.raises(
        TraceFileError,
        match=r":1:1: column 'user' appears twice: the columns are",
    ):
        read_trace(written(tmp_path, twice))
    # One that is not read may be there as often as it likes.
    assert (
        len(read_trace(written(tmp_path, HELIOS.replace("cpu_num", "queue"))))
        == 2
    )


def test_rows_that_are_the_same_are_told(tmp_path: Path) -> None:
    again = HELIOS + HELIOS.splitlines()[1] + "\n"
    with pytest.raises(
        TraceFileError, match=r"trace:4:1: job '7' appears twice"
    ):
        read_trace(written(tmp_path, again))
    trace = load_trace(written(tmp_path, again), skip_bad=True)
    assert (len(trace.jobs), trace.left_out) == (2, {"appears twice": 1})
    # Philly's CSV has no names: two jobs that are alike may be two.
    alike = load_trace(
        written(tmp_path, PHILLY + PHILLY.splitlines()[1] + "\n")
    )
    assert len(alike.jobs) == 3
    assert any("1 rows repeat an earlier row" in note for note in alike.notes)


@pytest.mark.parametrize(
    "opened", ["", "pai_task_table.csv", "pai_job_table.csv"]
)
def test_pai_tables_from_the_folder_or_either_file(
    tmp_path: Path, opened: str
) -> None:
    written(tmp_path, PAI_TASKS, "pai_task_table.csv")
    written(tmp_path, PAI_JOBS, "pai_job_table.csv")
    trace = load_trace(tmp_path / opened)
    assert trace.format == "pai-tables"
    assert plain(trace.jobs) == [("j1", 0, 90, 2, ""), ("j2", 20, 5, 2, "")]


def test_pai_tasks_alone_with_a_header_take_the_first_launch(
    tmp_path: Path,
) -> None:
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,"
    path = written(tmp_path, f"{header}gpu_type\n{PAI_TASKS}")
    assert plain(read_trace(path)) == [
        ("j2", 0, 5, 2, ""),
        ("j1", 10, 90, 2, ""),
    ]


def test_a_pai_job_table_alone_says_what_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, PAI_JOBS)
    with pytest.raises(
        TraceFileError,
        match=r"trace:1:1: .*expected pai_task_table\.csv beside",
    ):
        read_trace(path)


def test_a_pai_job_with_a_task_that_did_not_end_is_left_out_whole(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        PAI_TASKS + "j1,evaluator,1.0,Running,120.0,,600.0,29.3,100.0,\n",
    )
    with pytest.raises(
        TraceFileError, match=r"trace:4:1: job 'j1': end_time is missing"
    ):
        read_trace(path)
    trace = load_trace(path, skip_bad=True)
    assert [job.name for job in trace.jobs] == ["j2"]
    assert trace.left_out == {"end_time missing": 1}


def test_a_hole_in_the_pai_job_table_is_named_in_that_file(
    tmp_path: Path,
) -> None:
    written(tmp_path, PAI_JOBS.replace("70.0", ""), "pai_job_table.csv")
    path = written(tmp_path, PAI_TASKS, "pai_task_table.csv")
    with pytest.raises(
        TraceFileError,
        match=r"pai_job_table\.csv:1:1: job 'j1': start_time is",
    ):
        read_trace(path)


def test_philly_as_json(tmp_path: Path) -> None:
    trace = load_trace(written(tmp_path, json.dumps(LOG, indent=1)))
    assert trace.format == "philly-json"
    assert plain(trace.jobs) == [
        ("application_2", 0, 3600, 1, "v2"),
        ("application_1", 60, 40, 16, "v1"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attempts": []}, "job 'application_1': it has no attempts: it never ran"),
        ({"attempts": None}, "it has no attempts"),
        ({"submitted_time": "None"}, "submitted_time is missing"),
        ({"submitted_time": "yesterday"}, "submitted_time is 'yesterday': expected a date"),
        ({"attempts": [attempt("2020-01-01 00:02:00", None, 1)]}, "attempt 1: end_time is missing"),
        ({"attempts": [attempt("2020-01-01 00:02:00", "2020-01-01 00:01:00", 1)]},
         "attempt 1 ends before it starts"),
        ({"attempts": [attempt("2020-01-01 00:02:00", "2020-01-01 00:03:00", 0)]},
         "the number of GPUs is 0"),
        ({"attempts": [{"start_time": "2020-01-01 00:02:00", "end_time": "2020-01-01 00:03:00"}]},
         "attempt 1: expected 'detail' with the 'gpus' of each server"),
        ({"attempts": ["once"]}, "attempt 1 is not an object"),
        ({"jobid": 5}, "expected a job: an object with a 'jobid'"),
        ({"jobid": "application_2"}, "job 'application_2' appears twice"),
    ],
)  # fmt: skip
def test_a_broken_job_in_the_json(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    log = [LOG[1], {**LOG[0], **change}]
    path = written(
        tmp_path, "[\n" + ",\n".join(json.dumps(job) for job in log) + "\n]"
    )
    with pytest.raises(TraceFileError) as caught:
        read_trace(path)
    assert f"{path}:3:1: " in str(caught.value)
    assert message in str(caught.value)
    trace = load_trace(path, skip_bad=True)
    assert [job.name for job in trace.jobs] == ["application_2"]
    assert sum(trace.left_out.values()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1:1: the file is empty"),
        (" \n\n", ":1:1: the file is empty"),
        (
            "time,gpus\n1,2\n",
            r":1:1: unknown trace format with columns \(time, gpus",
        ),
        ("timestamp,duration,num_gpus,gpu_time,cluster\n", ":1:1: no jobs"),
        ("[]", ":1:1: no jobs"),
        ("{}", ":1:1: expected a JSON list of jobs"),
        ('[{"jobid": "a"', ":1:1: not JSON: "),
        (
            '[{"jobid": "a"} {"jobid": "b"}]',
            r":1:1: not JSON: expected ',' or '\]' after a job",
        ),
        ("[] []", "text after the list"),
    ],
)
def test_a_file_that_is_no_trace(
    tmp_path: Path, text: str, message: str
) -> None:
    for skip_bad in (False, True):
        with pytest.raises(TraceFileError, match=message):
            read_trace(written(tmp_path, text), skip_bad=skip_bad)


@pytest.mark.parametrize(
    ("row", "column", "message", "reason"),
    [
        (",5,1,5,c", 1, "timestamp is missing", "timestamp missing"),
        ("2020-13-01 00:00:00,5,1,5,c", 1, "expected a date and time", "timestamp unreadable"),
        ("2020-01-01 00:00:00,,1,5,c", 21, "duration is missing", "duration missing"),
        ("2020-01-01 00:00:00,-5,1,5,c", 21, "duration is -5 s: expected more than 0",
         "duration not above 0 s"),
        ("2020-01-01 00:00:00,nan,1,5,c", 21, "duration is missing", "duration missing"),
        ("2020-01-01 00:00:00,inf,1,5,c", 21, "duration is 'inf'", "duration unreadable"),
        ("2020-01-01 00:00:00,5,0,5,c", 23, "num_gpus is 0: a job without a GPU", "no GPU"),
        ("2020-01-01 00:00:00,5,-2,5,c", 23, "num_gpus is -2: expected 1 to 1,000,000",
         "num_gpus out of range"),
        ("2020-01-01 00:00:00,5,1e9,5,c", 23, "num_gpus is 1000000000", "num_gpus out of range"),
        ("2020-01-01 00:00:00,5,1.5,5,c", 23, "expected a whole number", "num_gpus not whole"),
        ("2020-01-01 00:00:00,5", 1, "2 values, expected 5", "wrong number of values"),
        ("2020-01-01 00:00:00,5,1,5,c,d", 1, "6 values, expected 5", "wrong number of values"),
    ],
)  # fmt: skip
def test_a_broken_row(
    tmp_path: Path, row: str, column: int, message: str, reason: str
) -> None:
    path = written(tmp_path, PHILLY + row + "\n")
    with pytest.raises(TraceFileError) as caught:
        read_trace(path)
    (mistake,) = caught.value.issues
    assert (mistake.file, mistake.line, mistake.column) == (
        str(path),
        4,
        column,
    )
    assert message in mistake.message
    assert "--skip-bad" in (caught.value.hint or "")
    trace = load_trace(path, skip_bad=True)
    assert len(trace.jobs) == 2
    assert trace.left_out == {reason: 1}
    assert any(
        f"jobs left out: 1 ({reason}: 1)" in note for note in trace.notes
    )


def test_a_number_of_eight_digits_is_no_date(tmp_path: Path) -> None:
    text = PAI.replace(",10.0,", ",20200101,").replace(",40,", ",20200161,")
    assert [
        job.submitted_s for job in read_trace(written(tmp_path, text))
    ] == [0, 60]


def test_of_very_many_mistakes_the_first_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, PHILLY + "2020-01-01 00:00:00,5,0,0,c\n" * 1000)
    with pytest.raises(TraceFileError) as caught:
        read_trace(path)
    assert len(caught.value.issues) == 21
    last = caught.value.issues[-1]
    assert (
        last.message == "and 980 more mistakes follow (in all no GPU: 1,000)"
    )


def test_with_no_good_job_left_skipping_is_an_error_too(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path, "timestamp,duration,num_gpus\n2020-01-01 00:00:00,5,0\n"
    )
    with pytest.raises(TraceFileError, match="num_gpus is 0"):
        read_trace(path, skip_bad=True)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_trace(tmp_path / "nothing.csv")
    (tmp_path / "other.csv").write_bytes(b"\xff\xfe\x8b")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_trace(tmp_path / "other.csv")


def test_the_whole_philly_trace(philly: Path) -> None:
    begun = time.process_time()
    trace = load_trace(philly)
    assert time.process_time() - begun < 2.0  # 0.3 s measured
    assert len(trace.jobs) == 82_247
    assert sum(job.gpus == 1 for job in trace.jobs) == 76_627
    assert max(job.gpus for job in trace.jobs) == 128
    assert len({job.cluster for job in trace.jobs}) == 15
    assert trace.jobs[0].submitted_s == 0
    assert sorted(trace.jobs, key=lambda job: job.submitted_s) == trace.jobs


@pytest.mark.parametrize(
    ("name", "median_s", "mean_gpus"),
    [("helios", 206, 3.8), ("pai", 504, 5.4)],
)
def test_drawn_jobs_are_like_those_that_are_published(
    name: str, median_s: float, mean_gpus: float
) -> None:
    jobs = LAWS[name].draw(3, 20_000, 1024)
    assert jobs == LAWS[name].draw(3, 20_000, 1024)
    assert jobs != LAWS[name].draw(4, 20_000, 1024)
    assert jobs[0].submitted_s == 0
    assert np.median([job.duration_s for job in jobs]) == pytest.approx(
        median_s, rel=0.1
    )
    assert np.mean([job.gpus for job in jobs]) == pytest.approx(
        mean_gpus, rel=0.1
    )
    each_s = jobs[-1].submitted_s / len(jobs)
    assert 86400 / each_s / 1024 == pytest.approx(
        LAWS[name].jobs_per_gpu_day, rel=0.05
    )
    assert max(job.gpus for job in LAWS[name].draw(3, 500, 10)) <= 10
    with pytest.raises(BadInput, match="at least one GPU"):
        LAWS[name].draw(3, 5, 0)


def test_gpu_time_of_drawn_helios_jobs_is_the_published_one() -> None:
    jobs = LAWS["helios"].draw(0, 200_000, 6220)
    assert np.mean([job.duration_s for job in jobs]) == pytest.approx(
        6652, rel=0.05
    )
    assert np.mean(
        [job.duration_s * job.gpus for job in jobs]
    ) == pytest.approx(49_350, rel=0.15)


def test_a_file_with_the_name_of_a_law_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_drawn("helios")
    (tmp_path / "helios").write_text("")
    assert not is_drawn("helios")
