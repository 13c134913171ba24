"""A small lab file with every kind of device."""

SMALL_LAB = """\
name: small
network: 192.168.10.0/24
fabric: openvswitch
scale: 1000
controller: {api: 127.0.0.1:8470, openflow: 127.0.0.1:6653}
servers:
  - name: server1
    management: 10.0.0.11:8471
    gpus: [{name: gpu0, model: Tesla M40, uuid: GPU-1}]
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, gpu: gpu0}]
  - name: server2
    management: unix:/run/agent.sock
    gpus: [{name: gpu1, model: Titan V}]
    nics: [{name: nic1, address: 192.168.10.12, gpu: gpu1, mac: "02:00:00:00:00:01"}]
packet_switches:
  - {name: tor1, datapath_id: 0x1, ports: 4}
  - {name: tor2, datapath_id: 2, ports: 4, launch_power: -3dBm}
circuit_switches:
  - name: ocs1
    driver: calient-tl1
    address: 10.0.0.5:3082
    ports: 8
    switching_time: 25ms
    insertion_loss: 1.5dB
    cross_connects: [1-3, 2>4]
fibres:
  - {ends: [server1.nic0, ocs1.1], rate: 40Gbps, loss: 0.3dB}
  - {ends: [server2.nic1, ocs1.2]}
  - {ends: [tor1.1, ocs1.3]}
  - {ends: [tor2.1, ocs1.4]}
"""
