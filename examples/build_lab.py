"""Make a lab in Python, rewire it and train over it on this machine. Needs root.

$ python examples/build_lab.py
2 servers, 6 fibres, circuits 1-3, 2-5
all answer: True
server2.nic0 is on tor1.2 now: ('1-3', '2-4')
job done
"""

from patchlight import EmulatedLab, JobSpec, LabBuilder

build = LabBuilder("built", network="10.1.0.0/24")
build.ocs("ocs1")
for tor in ("tor1", "tor2"):
    build.switch(tor)
for name in ("server1", "server2"):
    build.server(name, gpus=["A100"], rate="10Gbps")
    build.fibre(name, "ocs1")
for port in ("tor1.1", "tor1.2", "tor2.1"):
    build.fibre(port, "ocs1")
build.fibre("tor1", "tor2")
build.circuit("server1.nic0", "tor1.1")
build.circuit("server2.nic0", "tor2.1")
lab = build.lab()
circuits = ", ".join(lab.initial_maps["ocs1"].texts)
print(f"{len(lab.servers)} servers, {len(lab.fibres)} fibres, circuits {circuits}")

with EmulatedLab.from_lab(lab, scale=1000, workers="process") as emulated:
    print("all answer:", bool(emulated.pingall()))
    emulated.ocs("ocs1").connect("server2:tor1.2", why="an example")
    print("server2.nic0 is on tor1.2 now:", emulated.ocs("ocs1").map.texts)
    spec = JobSpec("example", 2, 1_000_000, {"A100": 0.01}, workers=2)
    print("job", emulated.wait_for(emulated.submit(spec)[0].id).state)
