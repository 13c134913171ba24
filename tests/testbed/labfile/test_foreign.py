"""Files of other programs, given as lab files: what they are, and what to do."""

import json
import textwrap
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.testbed.labfile.reader import (
    LabFileError,
    builtin_lab,
    builtin_labs,
    load_lab,
)

INIT = "patchlight lab init"
READ = "patchlight lab generate FILE"
WIRE = "servers, switches and fibres"
FOREIGN = {
    "srl.clab.yml": (
        """
        # a lab: {name: x}
        name: srl
        topology:
          nodes:
            srl: {kind: nokia_srlinux}
          links:
            - endpoints: ["srl:e1-1", "ceos:eth1"]
        """,
        ("a containerlab topology", READ),
    ),
    "topology.yml": (
        "provider: clab\nnodes: [a, b]\nlinks: [a-b]\n",
        ("netlab's", INIT),
    ),
    "net.py": (
        """
        #!/usr/bin/env python
        from mininet.net import Mininet
        net = Mininet()
        """,
        ("a Mininet program", WIRE, INIT),
    ),
    "net.mn": (
        json.dumps(
            {
                "application": {},
                "controllers": [],
                "hosts": [],
                "links": [],
                "switches": [],
            }
        ),
        ("MiniEdit", INIT),
    ),
    "lab.conf": (
        '# Kathara\nr1[0]="A"\nr1[image]="kathara/frr"\n',
        ("a Kathará lab", INIT),
    ),
    "x.gns3": (
        '{"project_id": "1", "topology": {"nodes": [], "links": []}}',
        ("a GNS3 project", INIT),
    ),
    "x.dot": ("digraph G {\n  a -> b;\n}\n", ("a graph", INIT)),
    "x.graphml": (
        '<?xml version="1.0"?>\n<graphml xmlns="x">\n</graphml>\n',
        ("a graph", INIT),
    ),
    "mesh.json": (
        '{"elements": [{"uid": "a", "type": "Fiber"}], "connections": []}',
        ("a GNPy network", "fibres with a loss", INIT),
    ),
    "eqpt.json": (
        '{"Edfa": [], "Fiber": [], "Span": [{}]}',
        ("GNPy equipment", INIT),
    ),
    "services.json": ('{"path-request": []}', ("GNPy list of services",)),
    "topology.conf": (
        "# tree\nSwitchName=s1 Nodes=n[1-4]\n",
        (
            "Slurm's topology.conf",
            READ,
        ),
    ),
    "block.conf": (
        "BlockName=b1 Nodes=n[1-4]\nBlockSizes=4\n",
        ("Slurm's topology.conf",),
    ),
    "topology.yaml": (
        "- topology: default\n  cluster_default: true\n  tree:\n    switches: []\n",
        ("Slurm's topology.yaml", READ),
    ),
    "rows.yaml": (
        "---\n- cluster_default: true\n  topology: default\n  flat: true\n",
        ("Slurm's topology.yaml",),
    ),
    "flow-topology.yaml": (
        "[{topology: a, flat: true}]\n",
        ("Slurm's topology.yaml",),
    ),
    "own-line.yaml": (
        "---\n-\n  topology: default\n",
        ("Slurm's topology.yaml",),
    ),
    "partitions.conf": (
        "# queues\nPartitionName=gpu Nodes=ALL\n",
        ("Slurm's slurm.conf", INIT),
    ),
    "spectrum.json": (
        '{"spectrum": [{"f_min": 1.9e14}]}',
        ("a GNPy file of parameters", INIT),
    ),
    "yang-eqpt.json": (
        '{"gnpy-eqpt-config:equipment": {}}',
        ("a GNPy file of parameters",),
    ),
    "old-slurm.conf": (
        "ControlMachine=head\n",
        ("Slurm's slurm.conf",),
    ),
    "train.sbatch": (
        "#!/bin/bash\n#SBATCH --gpus=4\nsrun python train.py\n",
        ("a Slurm batch script", "patchlight job submit NAME -- COMMAND"),
    ),
    "yang.json": (
        '{"gnpy-network-topology:topology": {}}',
        ("a GNPy network", INIT),
    ),
    "yang.yaml": (
        "ietf-network:networks:\n  network: []\n",
        ("a GNPy network", INIT),
    ),
    "inventory.yaml": (
        "all:\n  hosts:\n    gpu1: {}\n",
        ("an Ansible inventory", INIT),
    ),
    "include.conf": (
        "# racks\nInclude /etc/slurm/row1.conf\n",
        (
            "a Slurm file that includes others",
            "patchlight lab show LAB --format slurm-conf",
        ),
    ),
    "slurm.conf": (
        "# slurm\nClusterName=c\nNodeName=n[1-4] Gres=gpu:4\n",
        ("Slurm's slurm.conf", INIT),
    ),
    "gres.conf": (
        "NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n",
        ("Slurm's gres.conf", INIT),
    ),
    "pod.yaml": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Node\n",
        ("a Kubernetes manifest", "--format kueue"),
    ),
    "compose.yaml": (
        "services:\n  web:\n    image: nginx\n",
        ("a Docker Compose file", "patchlight job submit NAME --image IMAGE"),
    ),
    "flow.yaml": (
        "services:\n  web: {image: nginx}\n",
        ("a Docker Compose file",),
    ),
    "compose.json": (
        '{"services": {"web": {"image": "x"}}}',
        ("a Docker Compose file",),
    ),
    "infra.yaml": (
        "name: a\ndevices: []\ninstances: []\nedges: []\n",
        ("an InfraGraph infrastructure", READ),
    ),
    "config_db.json": (
        '{\n\t"DEVICE_METADATA": {},\n\t"PORT": {"Ethernet0": {"index": "1"}}\n}',
        ("a SONiC configuration", "packet_switches"),
    ),
    "job.yaml": (
        "name: vgg\nworkers: 4\nmodel: vgg19\n",
        ("a Patchlight job file", "patchlight job submit"),
    ),
    "jobs.yaml": (
        "jobs:\n  - name: a\n    workers: 4\n",
        ("a Patchlight job file",),
    ),
    "flow-jobs.yaml": (
        "jobs: [{name: a, workers: 4}]\n",
        ("a Patchlight job file",),
    ),
    "policy.py": (
        '"""Mine."""\nimport math\n\nclass Mine:\n    def choose(self): ...\n',
        ("a Python program", "policies"),
    ),
    "card.json": (
        '{\n  "format": "patchlight-policy",\n  "version": 2\n}',
        ("policy's card",),
    ),
    "result.json": (
        '{"experiment": "pac-ml", "provenance": {}}',
        ("an experiment's result",),
    ),
    "astra.yml": (
        "topology: [Ring]\nnpus_count: [8]\n",
        ("ASTRA-sim", "--network astra:FILE"),
    ),
    "log.swf": (
        "; Version: 2.2\n1 0 5\n",
        ("a job trace", "patchlight simulate --trace"),
    ),
    "jobs.txt": ("JobID|Submit|State\n1|2|3\n", ("a job trace",)),
    "user-first.txt": ("User|JobID|State\na|1|2\n", ("a job trace",)),
    "philly.csv": ("timestamp,duration,num_gpus\n0,60,1\n", ("a job trace",)),
    "trace.csv": (
        "job_id,submit_time,duration\r\n1,2,3\r\n",
        ("a job trace",),
    ),
    "bare.swf": (f"\n 1{' -1' * 17}\n", ("a job trace",)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_named_with_what_to_do(
    tmp_path: Path, name: str
) -> None:
    text, words = FOREIGN[name]
    path = tmp_path / name
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    with pytest.raises(LabFileError) as caught:
        load_lab(str(path))
    (issue,) = caught.value.issues
    assert (issue.line, issue.column) == (1, 1)
    assert issue.message.startswith("this is ")
    for each in words:
        assert each in issue.message
    checked = CliRunner().invoke(cli, ["lab", "check", str(path)])
    assert (checked.exit_code, checked.output) == (2, f"{issue}\n")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x1f\x8b\x08\0", "compressed with gzip"),
        (b"PK\x03\x04mesh.xlsx", "a ZIP archive or a spreadsheet"),
        (b"\x89PNG\r\n", "an image"),
        ("name: x\n".encode("utf-16"), "text in UTF-16"),
        (b"\x08\x07\x12\0pytorch", "binary"),
    ],
)
def test_a_binary_file_is_named(
    tmp_path: Path, content: bytes, what: str
) -> None:
    (tmp_path / "lab.yaml").write_bytes(content)
    with pytest.raises(
        LabFileError, match=f"1:1: it is {what}, not a text file in UTF-8: exp"
    ):
        load_lab(str(tmp_path / "lab.yaml"))


def test_long_files_of_no_kind_are_read_once(tmp_path: Path) -> None:
    begun = time.process_time()
    texts = [
        "9" * 10**6,
        "\n" * 10**6,
        "a b\n" * 10**5,
        "[" * 10**6,
        "graph " * 10**5,
    ]
    texts += [
        f"{key}:{gap * 10**5}"
        for key in ("jobs", "services")
        for gap in ("\n", " ", " \n")
    ]
    for text in texts:
        (tmp_path / "lab.yaml").write_text(text)
        with pytest.raises(LabFileError):
            load_lab(str(tmp_path / "lab.yaml"))
    assert time.process_time() - begun < 5.0  # 0.4 s measured


def test_an_empty_file_says_how_to_begin(tmp_path: Path) -> None:
    for text in ("", "# only a comment\n"):
        (tmp_path / "lab.yaml").write_text(text)
        with pytest.raises(
            LabFileError, match=f"1:1: the file is empty: .*{INIT}"
        ):
            load_lab(str(tmp_path / "lab.yaml"))


def test_lab_files_with_mistakes_stay_lab_files(tmp_path: Path) -> None:
    wrong = {
        # Keys and words of other formats do not make it one of these.
        "services": "services:\n  image: x\n",
        "topology": "topology: {nodes: []}\n",
        "model": "# from mininet import Mininet\nmodel: vgg19\n",
    }
    for key, text in wrong.items():
        (tmp_path / "lab.yaml").write_text(
            f"{builtin_lab('ofc2022').read_text()}{text}"
        )
        with pytest.raises(
            LabFileError, match=f"unknown key '{key}' in a lab"
        ):
            load_lab(str(tmp_path / "lab.yaml"))
    (tmp_path / "lab.yaml").write_text(
        "# submit_time, duration: JobID\nname: only\n"
    )
    assert load_lab(str(tmp_path / "lab.yaml")).name == "only"
    for name in builtin_labs():
        assert load_lab(name).name
