"""A hundred wrong inputs: one clear line each, exit code 2, and nothing changed."""

import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight.cli.main import main
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)
from tests.support.tables import below

pytestmark = [pytest.mark.wings, pytest.mark.xdist_group("wrong inputs")]

JOB = "name: j\nworkers: 2\niterations: 1\ngradient: 1MB\n"
FILES = {
    "job.yaml": JOB,
    "typo.yaml": JOB.replace("workers", "worker"),
    "tab.yaml": "name: x\n\t- y\n",
    "list.yaml": "- 1\n- 2\n",
    "empty.yaml": "",
    "end.yaml": "name: half\nfibres: [{ends: [a.n0]}]\n",
    "map.yaml": "o1: [1-99]\n",
    "other-map.yaml": "o9: [1-2]\n",
    "map.csv": "o1,1\n",
    "policy.py": "class Mine: pass\n",
    "broken.py": "def (\n",
    "trace.csv": "a,b\n1,2\n",
    "token": "\n",
}
# A part of the message, and below it the inputs that get it. L stands for --lab and the lab of
# the running controller, J for 'job submit j' with it and one worker.
WRONG = """
no command 'nosuch'
    nosuch
did you mean 'lab'?
    labb check x
expected lab files to check, or --schema
    lab check
    lab check ofc2022 --schema
missing argument
    ocs rollback L
    job submit L
    job stop L
    ocs connect L
    policy replay --with regroup L
this is a Patchlight job file
    lab check typo.yaml
did you mean
    job submit typo.yaml L
    lab discover --ports o9.1 L
    ocs show o9 L
    emulate ocs calient
nosuch.yaml:1:1: cannot be read
    lab check nosuch.yaml
    lab show ofc2022 --map nosuch.yaml
    job submit nosuch.yaml L
is empty
    lab check empty.yaml
    job submit empty.yaml L
found a list
    lab check list.yaml
    job submit list.yaml L
tab.yaml:2:1: not YAML
    lab check tab.yaml
    job submit tab.yaml L
expected 2 ends, found 1
    lab check end.yaml
expected lab files to check
    lab check
no such option '--nosuch'
    lab check ofc2022 --nosuch
    ocs show --nosuch L
the built-in labs are
    lab show nosuch
    emulate up nosuch
    status --lab nosuch
    job list --lab nosuch
    controller run --lab nosuch
    doctor --lab nosuch
    experiment ofc2022 --lab nosuch
    deploy push nosuch
    deploy certificates nosuch --output x
is not one of
    lab show ofc2022 --format nosuch
    lab init --driver nosuch
    emulate up ofc2022 --server-kind moon
    job list --status sleeping L
    token create x --role king L
is neither a topology (
    lab generate nosuch
is not in the range
    lab generate single --servers 0
    lab init --servers 0
    job list --last -1 L
    ocs history --last 0 L
    audit --last 0 L
    policy compare regroup --labs 1
is not a rate
    lab generate single --rate fast
    lab init --rate 10
job.yaml exists
    lab init --output job.yaml
is not a lab's name
    lab init --name 'a b'
is not a time
    lab discover --for never L
    J --deadline yesterday
    J --compute M=soon
    top --every 0 L
    token create x --lifetime -1d L
    simulate --trace helios --failures server:x:y
scale 0
    emulate up ofc2022 --scale 0
is not a valid number
    emulate up ofc2022 --scale many
unknown policy 'nosuch'
    emulate up ofc2022 --placement nosuch
    controller run --order nosuch L
    policy use --placement nosuch L
    policy show nosuch
    policy compare nosuch
    simulate --trace helios --placement nosuch
    experiment pac-ml --policies nosuch
nosuch
    emulate down nosuch
    emulate exec --lab nosuch gpu0 -- true
    emulate link --lab nosuch a b down
    emulate fault ocs1 lose 1 --lab nosuch
    emulate tune --lab nosuch server1 193.1
no emulated switch for driver 'nosuch'
    emulate ocs nosuch
is not an address
    emulate ocs polatis-scpi --listen nowhere
    dashboard --listen nowhere L
expected 1 to 65536, or auto
    job submit j --workers 0 L
    job submit j --workers two L
the lab has 2 suitable GPUs
    job submit j --workers 99 L
no host called 'nosuch'
    job submit j --hosts a.g0,nosuch L
    ocs colocate nosuch L
    ocs claim j --nodes nosuch L
is not a list of nodes
    ocs claim j --nodes a[1 L
name the claim
    ocs claim --release L
the lab's GPUs with a NIC are of M
    J --gpu-models A9000
is not a size
    J --gradient big
a whole number from 1 to
    J --iterations 0
    J --array 0
unknown model 'nosuch'
    J --model nosuch
    experiment oddl --model nosuch
    graph profile nosuch
is neither built in nor the lab's policy
    J --placement nosuch
    J --topology nosuch
'nosuch'
    J --after nosuch
expected KEY=VALUE
    J --set hold
--set:2:1: unknown key 'sed'
    J --set hold=freeze --set sed=1
expected NAME=VALUE
    J --env NAME
expected one of workers
    J --sweep colour=1,2
is not a job's name
    job submit 'a b' --workers 1 L
expected either --workers N or --hosts
    job submit j L
    job submit j --workers 2 --hosts a.g0 L
expected HOST:PORT
    job list --controller nowhere
exclude each other
    ocs verify --adopt --repair L
    ocs show --paths --power L
    job list --controller 127.0.0.1:1 L
no job 'nosuch'
    job show nosuch L
    job logs nosuch L
    job stop nosuch L
    job restart nosuch L
    job regroup nosuch L
expected ports of o1 to connect
    ocs connect o1 L
neither a pair A:B nor an OCS
    ocs connect o9 1:2 L
has ports 1–16
    ocs connect o1 1:99 L
    ocs connect o1 0:1 L
    ocs disconnect o1 99 L
    ocs apply map.yaml L
expected two different ports
    ocs connect o1 1:1 L
is not plugged into an OCS
    ocs connect o1 1:a.n7 L
has no fibre to an OCS
    ocs connect a.n0:b.n9 L
is used twice
    ocs connect o1 1:3 2:3 L
names a channel
    ocs connect o1 3:4@193.1 L
has no circuit
    ocs disconnect o1 16 L
no OCS called 'o9'
    ocs apply other-map.yaml L
is neither a file nor saved circuits
    ocs apply nosuch L
is not a port
    ocs apply map.csv L
expected a list of cross-connects
    ocs apply job.yaml L
unknown change 999
    ocs rollback 999 L
    ocs stop 999 L
is not a valid integer
    ocs rollback x L
    ocs watch --after-event yesterday L
--why
    ocs lock o1 99 L
invalid name for saved maps
    ocs save a/b L
missing option '--state'
    controller restore job.yaml
no device called 'nosuch'
    agent run --lab ofc2022 --server nosuch --listen unix:x.sock
needs certificates
    agent run --lab ofc2022 --server server1 --listen 127.0.0.1:1
--ca is missing
    login --controller 127.0.0.1:1
--end takes no --why
    controller drain --end --why x L
does not exist
    login --ca nosuch.pem L
certificate
    login --ca job.yaml --controller 127.0.0.1:1 --token-file token
token list
    token revoke nosuch L
expected how long ago
    report --since tomorrow L
it has none of a policy's methods
    policy use --placement policy.py:Mine L
broken.py:1: invalid syntax
    policy use --placement broken.py:Mine L
No such file
    policy use --placement nosuch.py:Mine L
    simulate --trace nosuch.csv
no environment 'nosuch'
    env show nosuch
no graph 'nosuch'
    graph show nosuch
no jobs to simulate
    simulate
cannot tell the trace's format
    simulate --trace trace.csv
is not a cluster
    simulate --trace helios --cluster 4x4
is no parameter of torus
    simulate --trace helios --network torus:x=nosuch
no requirement law 'Z'
    experiment pac-ml --laws Z
no case 'z'
    experiment ofc2022 --cases z
no network 'nosuch'
    experiment architectures --network nosuch
has no server 'nosuch'
    doctor --lab ofc2022 --server nosuch
    deploy status ofc2022 --server nosuch
expected one of the servers
    deploy push ofc2022 --controller nosuch
like 3.12
    deploy bundle --python 2.7 --output x
no folder
    deploy bundle --output nosuch/x
--lab is given twice: a and b
    job list --lab a --lab b
--controller is given twice
    job list --controller b:1 --controller b:2
has no uplinks
    lab generate single --servers 4 --uplink-rate 1Gbps
is for linear and tree
    lab generate fat-tree --servers 4 --servers-per-switch 2
loops, in which bridges
    lab generate fat-tree --servers 16 --fabric bridge
1366 hosts of an OCS: expected a number from 1 to 1365
    lab init --servers 1366
' ' is not a GPU model
    lab init --gpu-model ' '
did you mean 'polatis-scpi'?
    emulate ocs polatis-scip
port 40
    emulate ocs polatis-scpi --circuits 1-40
host:port
    emulate ocs polatis-scpi --listen nonsense
'fast'
    emulate ocs polatis-scpi --switching-time fast
is not set
    emulate ocs polatis-scpi --password-env NOT_SET_AT_ALL
is not a folder
    emulate ocs polatis-scpi --save /no/such/folder/file
    experiment pac-ml --profiles nosuch
outputs
    emulate ocs waveshaper-http
has one common port
    emulate ocs waveshaper-http --ports 2x4
'many'
    emulate ocs calient-tl1 --ports many
lab ofc2022 has no OCS called 'ocs9'
    emulate ocs ocs9 --lab ofc2022
job j-workers-99: 99 workers requested, but
    J --sweep workers=1,99
--sweep workers=2,x: expected how many workers
    J --sweep workers=2,x
expected MODEL=TIME
    J --compute 500ms
image: only for jobs with trainer
    J --image x
exclude each other
    J --regroup --topology keep
    simulate --trace helios --cluster 1x1x4 --lab ofc2022
    policy train small --seed 1 --seeds 2
--set:1:10: expected how often
    J --set retries=x
retries is given twice
    J --set retries=1 --retries 2
--follow is for one job
    J --follow --array 2
expected 1 to 65536, or auto
    job submit j --workers -1 L
    job submit j --workers 1.5 L
before
    report --since 1h --until 2h L
--load 0
    policy compare first-fit --load 0
--defragment needs circuits
    simulate --trace helios --defragment
expected more than 0
    simulate --trace helios --lab ofc2022 --defragment 0
    simulate --trace helios --speed 0
    experiment pac-ml --failures 0d:4h
this cluster has no OCS
    simulate --trace helios --topology regroup
did you mean 'fifo'
    simulate --trace helios --order fifoo
unknown policy
    simulate --trace helios --placement srpt
    experiment pac-ml --policies constant-3
    experiment pac-ml --policies fifo
'rack' cannot break
    simulate --trace helios --failures rack:1d:1h
does not say what breaks
    simulate --trace helios --failures server
    simulate --trace helios --failures server:1d
    experiment pac-ml --failures 30d
'1' is not a time
    simulate --trace helios --failures server:1:1h
expected more than 0 s
    simulate --trace helios --failures gpu:0s:1h
less than 1
    simulate --trace helios --communication 1
expected 1 or more
    simulate --trace helios --cluster 1x1x4,taper=0.5
is not a cluster
    simulate --trace helios --cluster 16x16
    simulate --trace helios --cluster axbxc
    simulate --trace helios --cluster 16x16x8x2
needs to know how long
    simulate --trace helios --backfill --blind
only one kind
    simulate --trace helios --failures gpu:1d:1h --failures server:1d:1h
nodes and links of a --network
    simulate --trace helios --failures node:5@1h+5min
no job of the trace is user nobody's
    simulate --trace helios --set 'users=[{name: nobody, gpus: 3}]'
--set quantum: expected KEY=VALUE
    simulate --trace helios --set quantum
--set:1:12: expected a time with its unit, like '7d', found the number 7
    simulate --trace helios --set half_life=7
expected 1 s to
    simulate --trace helios --set half_life=0s
expected a number of GPUs
    simulate --trace helios --set 'each_user={gpus: 0}'
--set:1:1: unknown key 'quanta'
    simulate --trace helios --set quanta=3
even number of ports
    simulate --trace helios --network fat-tree:k=3
k=four: expected a whole number above 0
    simulate --trace helios --network fat-tree:k=four
k stands there twice
    simulate --trace helios --network fat-tree:k=4,k=8
'tapr=2' is no parameter of fat-tree: it has k=8, taper=1.0
    simulate --trace helios --network fat-tree:k=4,tapr=2
taper=0.5: expected 1
    simulate --trace helios --network fat-tree:taper=0.5
expected a number above 0
    simulate --trace helios --network fat-tree:taper=nan
'k' is no parameter
    simulate --trace helios --network fat-tree:k
2000000 nodes: expected 2 to
    simulate --trace helios --network fat-tree:k=200
spread=bits: expected flows or packets
    simulate --trace helios --network fat-tree:spread=bits
scheduler=matchin: did you mean 'matching'?
    simulate --trace helios --network oddl:scheduler=matchin
1 nodes
    simulate --trace helios --network ideal:nodes=1
not a rate
    simulate --trace helios --network ideal:rate=fast
latency=-1s
    simulate --trace helios --network ideal:latency=-1s
joined by x
    simulate --trace helios --network torus:dims=4xx4
at least 2 nodes
    simulate --trace helios --network torus:dims=1x9
no more racks than groups
    simulate --trace helios --network ramp:racks=9
switching < slot
    simulate --trace helios --network rotornet:switching=1s
at most 4096
    simulate --trace helios --network sip-ring:nodes=9000
ideal:mtu=100: an MTU of 100 bytes: expected 576 to 65535
    simulate --trace helios --network ideal:mtu=100
'rate=1Gbps' is no parameter of lab: it has mtu=1500, frame=38
    simulate --trace helios --network lab:ofc2022,rate=1Gbps
no network 'fattree'
    simulate --trace helios --network fattree
does not say what fails
    simulate --trace helios --network ideal:nodes=8 --failures link:1@1s
'switch' cannot fail
    simulate --trace helios --network ideal:nodes=8 --failures switch:1@1s+1s
names no link
    simulate --trace helios --network ideal:nodes=8 --failures link:x@1s+1s
more than 0 s
    simulate --trace helios --network ideal:nodes=8 --failures link:1@1s+0s
not a time
    simulate --trace helios --network ideal:nodes=8 --failures link:1@1+1s
no link 99
    simulate --trace helios --network ideal:nodes=8 --failures link:99@1s+1s
no node 8
    simulate --trace helios --network ideal:nodes=8 --failures node:8@1s+1s
to itself
    simulate --trace helios --network ideal:nodes=8 --failures path:0-0@1s+1s
does not say who is slow
    simulate --trace helios --network ideal:nodes=8 --slow 1
    simulate --trace helios --network ideal:nodes=8 --slow x:2
factor of 1 or more
    simulate --trace helios --network ideal:nodes=8 --slow 1:0.5
no law 'normal'
    simulate --trace helios --network ideal:nodes=8 --slow 1:normal:1
spread of 0 or more
    simulate --trace helios --network ideal:nodes=8 --slow 1:lognormal:-1
no node 9
    simulate --trace helios --network ideal:nodes=8 --slow 9:2
has to be told 'degree'
    experiment pac-ml --policies constant
no placement rule 'best'
    experiment pac-ml --rules best
did you mean 'ramp-block'
    experiment pac-ml --rules ramp-blok
is not in the range
    experiment pac-ml --seeds 0
    experiment pac-ml --first-seed -1
    experiment oddl --slowdown 0.5
expected at least 1 of each, and at most 1048576 GPUs
    simulate --trace helios --cluster 0x1x1
    simulate --trace helios --cluster 9999x9999x9999
is not a RAMP
    experiment pac-ml --ramp 4x4
    experiment pac-ml --ramp 0x1x1
expected 65536 at most
    experiment pac-ml --ramp 99x99x99
did you mean 'poisson'
    experiment pac-ml --arrivals poison:5
how often jobs come
    experiment pac-ml --arrivals poisson
0.0 s apart
    experiment pac-ml --arrivals fixed:0
1,000,000 jobs at most
    experiment pac-ml --arrivals fixed:0.001
no job came
    experiment pac-ml --quick --seeds 1 --policies constant:2 --arrivals poisson:1e9
did you mean 'vgg16'
    experiment pac-ml --mix vgg=1
expected each model once
    experiment pac-ml --mix gnmt
    experiment pac-ml --mix gnmt=1,gnmt=2
a share above 0
    experiment pac-ml --mix gnmt=0
--scale is for the experiment with packets
    experiment oddl --flows --scale 5
--nodes is for the experiment in flows
    experiment oddl --nodes 16
expected one --model
    experiment oddl --model vgg19 --model gpt2
expected one --tuning-time
    experiment oddl --flows --tuning-time 1us,2us
--processes is for partition policies of labs
    policy train small --processes 2
--ray is for partition policies of labs
    policy train small --ray local
--seeds is for partition policies of a RAMP
    policy train lab-partition --seeds 2
cannot begin with 'nowhere': there is no such run
    policy train small --start nowhere
--start is for partition policies of a RAMP
    policy train lab-partition --start nowhere
did you mean 'schedule'
    env show Scedule
no environment is named
    env check
exclude
    env check Schedule --all
no device called 'c'
    ocs connect o1 1:c.n0 L
expected A:B
    ocs connect o1 a.n0-b.n1 L
even number
    experiment oddl --iterations 3
expected 1e
    experiment oddl --scale 1e6
only all-reduces
    experiment oddl --model mixture-of-experts
one size
    experiment architectures --network ideal:nodes=16 --network fat-tree:k=8
"""


CASES = below(WRONG)


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    with controller_process(
        tmp_path_factory.mktemp("controller")
    ) as controller:
        yield controller


def test_there_are_a_hundred() -> None:
    assert len({words for words, _ in CASES}) >= 100


@pytest.mark.parametrize(
    ("words", "said"), CASES, ids=[words for words, _ in CASES]
)
def test_a_wrong_input_is_told_in_a_line_and_changes_nothing(
    words: str,
    said: str,
    running: ControllerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    before = state(running)
    lab = ["--lab", str(running.lab)]
    short = {"L": lab, "J": ["job", "submit", "j", "--workers", "1", *lab]}
    arguments = [
        part for word in shlex.split(words) for part in short.get(word, [word])
    ]
    with pytest.raises(SystemExit) as end:
        main(arguments)
    printed = capsys.readouterr()
    # What is wrong with a file that is checked is the command's output.
    told = printed.err or printed.out
    # On a busy machine, also how far it is.
    first, *more = [
        x
        for x in told.splitlines()
        if not re.search(r" done (yet )?after \d", x)
    ]
    assert end.value.code == 2, told
    assert said in first
    # Further lines are a hint, or further mistakes in the same file.
    assert all(
        line.startswith(("  ", first.partition(":")[0])) for line in more
    ), told
    assert {
        path.name: path.read_text() for path in tmp_path.iterdir()
    } == FILES
    assert state(running) == before


def state(running: ControllerProcess) -> object:
    """What the lab's controller has."""
    asked = running.client
    return [
        asked.circuits(),
        asked.reconfigurations(),
        asked.jobs(),
        asked.locks(),
        asked.saved_maps(),
        asked.stop_button(),
        asked.policies(),
        asked.tokens(),
    ]
