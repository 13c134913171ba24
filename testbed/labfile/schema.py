"""The keys of a lab file, each with its type: one declaration for the reader and for editors."""

from dataclasses import replace

from patchlight.testbed.io.fields import ListOf, Number, YesNo, choice
from patchlight.testbed.io.groups import Group, Key, required
from patchlight.testbed.labfile.access_schema import access_group
from patchlight.testbed.labfile.colours_schema import (
    TRANSCEIVER,
    TRANSCEIVERS,
    passive_part_group,
    wavelength_switch_group,
)
from patchlight.testbed.labfile.emulated_schema import emulated_group
from patchlight.testbed.labfile.policies_schema import POLICIES
from patchlight.testbed.labfile.queue_schema import queue_group
from patchlight.testbed.labfile.values import (
    ADDRESS,
    CIRCUIT_PORTS,
    CROSS_CONNECT,
    DATAPATH_ID,
    DEVICE_NAME,
    DRIVER,
    DSCP,
    FILE_PATH,
    HOST_KEY,
    HOST_PORT,
    INTERFACE,
    INTERFACE_ADDRESS,
    JUMP,
    LAB_NAME,
    LOSS,
    MAC,
    MANAGEMENT,
    MODEL,
    MTU,
    NETWORK,
    NIC_MODE,
    PACKET_PORTS,
    PART_NAME,
    PORT,
    POWER,
    RATE,
    RDMA_USE,
    ROUTE,
    SHARE,
    SSH_HOST,
    TCP_PORT,
    TIME,
    USER_NAME,
    UUID,
    VARIABLE_NAME,
    VLAN,
    WSS_DRIVER,
)
from patchlight.testbed.labfile.workers_schema import WORKERS

FABRICS = ("openvswitch", "bridge")
PATHS = ("none", "nodes")

LAUNCH_POWER = Key("launch_power", POWER, "optical power its ports send with", default="0dBm")

GPU = Group(
    "a GPU",
    required("name", PART_NAME, "what the GPU is called, like 'gpu0'", example="gpu0"),
    required("model", MODEL, "the model, like 'Tesla M40'"),
    Key("uuid", UUID, "pins the physical GPU on a real server"),
)
RENDEZVOUS = Group(
    "a rendezvous",
    required("interface", INTERFACE, "the server's interface that it is made on", example="eno1"),
    required("address", INTERFACE_ADDRESS, "the worker's address there, with its network"),
)
NIC = Group(
    "a NIC",
    required("name", PART_NAME, "what the NIC port is called, like 'nic0'"),
    required("address", ADDRESS, "its IPv4 address in the lab's network"),
    Key("rate", RATE, "its line rate", default="no limit"),
    Key("gpu", PART_NAME, "the GPU of the same server that it serves", example="gpu0"),
    Key(
        "mac",
        MAC,
        "the MAC address of its workers: the port's own (hardware), one made of the IPv4 address "
        "(lab), or this one",
        default="hardware; with mode macvlan, lab",
    ),
    Key("interface", INTERFACE, "the kernel's name of it on the server", default="its name"),
    Key(
        "mode",
        NIC_MODE,
        "what a worker gets: the NIC itself (physical; veth in an emulation), a virtual function "
        "of it (sriov), or a macvlan on it; auto takes a virtual function where it has one",
        default="auto",
        example="sriov",
    ),
    Key("mtu", MTU, "the MTU in the worker", default="as it is on the server", example="9000"),
    Key("vlan", VLAN, "the VLAN that its workers are in", default="none", example="100"),
    Key("routes", ListOf(ROUTE, "routes"), "more routes of the worker", default="none"),
    Key("dscp", DSCP, "what RDMA packets of NCCL are marked with", default="none", example="26"),
    Key(
        "rdma",
        RDMA_USE,
        "whether a worker gets its RDMA device: auto where there is one; exclusive, shared or none",
        default="auto",
    ),
    Key(
        "relock",
        TIME,
        "how long its carrier, and its RDMA port, may take to be back after its light moved",
        default="workers go on at once; with RDMA within 10s",
        example="2s",
    ),
    Key(
        "rendezvous",
        RENDEZVOUS,
        "a second way to its worker, over another interface of the server",
        example="{interface: eno1, address: 10.0.0.51/24}",
    ),
    Key(
        "transceiver",
        TRANSCEIVER,
        "the light of its port, where wavelengths matter",
        default="light without a channel",
        example="{tunable: 191.350-196.100, tuning_time: 1ms}",
    ),
    LAUNCH_POWER,
)
SSH = Group(
    "a server's SSH",
    Key("address", SSH_HOST, "the host that it answers at", default="that of management"),
    Key("port", TCP_PORT, "its TCP port", default="22"),
    Key("user", USER_NAME, "whom to log in as", default="as the SSH client says"),
    Key("identity", FILE_PATH, "the file of the private key", default="as the SSH client says"),
    Key("host_key", HOST_KEY, "the fingerprint of its host key", default="what known_hosts has"),
    Key(
        "legacy", YesNo("whether it may use them"), "it may use old SSH algorithms", default="false"
    ),
    Key("jump", JUMP, "the host to go through: [USER@]HOST[:PORT]", default="none"),
    Key(
        "jump_host_key",
        HOST_KEY,
        "the fingerprint of that host's key",
        default="what known_hosts has",
    ),
)
SERVER = Group(
    "a server",
    required("name", DEVICE_NAME, "what the server is called, like 'server1'"),
    Key("management", MANAGEMENT, "where the server's agent answers: host:port or unix:/path"),
    Key("ssh", SSH, "where and how its SSH answers", example="{user: admin}"),
    Key("gpus", ListOf(GPU, "GPUs"), "its GPUs", default="none"),
    Key(
        "emulated_gpus",
        YesNo("whether its GPUs are emulated"),
        "it has no such GPUs: 'deploy push' has them emulated there",
        default="false",
    ),
    required("nics", ListOf(NIC, "NICs"), "its NIC ports in the lab's network"),
)
PACKET_SWITCH = Group(
    "a packet switch",
    required("name", DEVICE_NAME, "what the switch is called, like 'tor1'", example="tor1"),
    required("datapath_id", DATAPATH_ID, "its OpenFlow datapath id, like 0x1", example="0x1"),
    required("ports", PACKET_PORTS, "how many ports it has", example="48"),
    Key(
        "transceivers",
        TRANSCEIVERS,
        "the light of its ports, where wavelengths matter, by port number",
        default="light without a channel",
    ),
    LAUNCH_POWER,
)
LOGIN = (
    Key("user", USER_NAME, "whom to log in as", default="admin"),
    Key("password_env", VARIABLE_NAME, "the environment variable that holds the password"),
    Key(
        "legacy_ssh",
        YesNo("whether it may use them"),
        "it may use old SSH algorithms",
        default="false",
    ),
)
EMULATED = Key(
    "emulated",
    emulated_group(USER_NAME, VARIABLE_NAME),
    "what its emulation alone heeds: faults, more users",
    example="{users: [{name: viewer, read_only: true}]}",
)
CIRCUIT_SWITCH = Group(
    "a circuit switch",
    required("name", DEVICE_NAME, "what the switch is called, like 'ocs1'", example="ocs1"),
    required("driver", DRIVER, "the driver that speaks to it, like 'calient-tl1'"),
    required(
        "address",
        HOST_PORT,
        "where it answers: host:port; with driver openflow, where Patchlight listens for it",
    ),
    Key(
        "datapath_id",
        DATAPATH_ID,
        "its OpenFlow datapath id, like 0x51; only with driver openflow",
        example="0x51",
    ),
    required("ports", CIRCUIT_PORTS, "how many duplex ports it has", example="320"),
    Key("switching_time", TIME, "how long a new circuit stays dark", default="25ms"),
    Key("insertion_loss", LOSS, "what a circuit through it loses", default="1.5dB"),
    *LOGIN,
    Key(
        "cross_connects",
        ListOf(CROSS_CONNECT, "cross-connects"),
        "the circuits it starts with: a-b both ways, a>b one way",
        default="none",
        example="[1-7, 2>8]",
    ),
    EMULATED,
)
WAVELENGTH_SWITCH = wavelength_switch_group(
    DEVICE_NAME,
    Key("driver", WSS_DRIVER, "the driver that speaks to it", default="none: nobody changes it"),
    Key("address", HOST_PORT, "where it answers: host:port; needed with a driver"),
    *LOGIN,
    EMULATED,
)
FIBRE = Group(
    "a fibre",
    required(
        "ends",
        ListOf(PORT, "ends", count=2),
        "the two ports it joins, like [server1.nic0, ocs1.1] or server1.nic0 - ocs1.1",
        example="[server1.nic0, ocs1.1]",
    ),
    Key("rate", RATE, "its rate", default="no limit of its own"),
    Key("loss", LOSS, "what light loses in it", default="0.3dB"),
    Key("delay", TIME, "how long an emulation holds each packet, each way", default="0s"),
    Key("jitter", TIME, "by how much that varies, up and down", default="0s"),
    Key("packet_loss", SHARE, "what share of packets an emulation loses in it", default="0%"),
)
# What things of a kind may have in common: nothing that tells them apart.
COMMON: dict[str, tuple[str, ...]] = {
    "ssh": ("port", "user", "identity", "jump", "jump_host_key"),
    "gpu": ("model",),
    "nic": (
        "rate",
        "mac",
        "mode",
        "mtu",
        "vlan",
        "routes",
        "dscp",
        "rdma",
        "relock",
        "transceiver",
        "launch_power",
    ),
    "packet_switch": ("ports", "launch_power"),
    "circuit_switch": ("driver", "ports", "switching_time", "insertion_loss", "user"),
    "fibre": ("rate", "loss", "delay", "jitter", "packet_loss"),
}


def _defaults(kind: str, group: Group, owner: str = "") -> Key:
    keys = [replace(key, required=False) for key in group.keys if key.name in COMMON[kind]]
    about = f"of each {owner or kind.replace('_', ' ')} that says nothing else"
    return Key(kind, Group(f"what {group.what} has", *keys), about)


DEFAULTS = Group(
    "the defaults",
    _defaults("ssh", SSH, "server's SSH"),
    _defaults("gpu", GPU),
    _defaults("nic", NIC),
    _defaults("packet_switch", PACKET_SWITCH),
    _defaults("circuit_switch", CIRCUIT_SWITCH),
    _defaults("fibre", FIBRE),
)
CONTROLLER = Group(
    "the controller",
    Key(
        "api",
        HOST_PORT,
        "where its REST API answers; beyond its own machine, with --tls and tokens only",
        example="127.0.0.1:8470",
        default="a Unix socket of the lab's own",
    ),
    Key(
        "openflow",
        HOST_PORT,
        "where it listens for OpenFlow",
        example="10.0.0.1:6653",
        default="127.0.0.1:6653",
    ),
    Key(
        "openflow_tls",
        YesNo("whether packet switches come over TLS"),
        "packet switches come over TLS, with certificates of the lab's authority",
        default="false",
    ),
    Key(
        "access",
        access_group(USER_NAME),
        "what users of its machine may do, where they are not root",
        example="{group: optics, others: nobody}",
    ),
)
LAB = Group(
    "a lab",
    required("name", LAB_NAME, "what the lab is called"),
    Key(
        "network",
        NETWORK,
        "the IPv4 network of the NICs, like '192.168.10.0/24'; needed with servers",
        default="none",
    ),
    Key(
        "fabric",
        choice("a fabric", *FABRICS),
        "what an emulation makes packet switches of",
        default="openvswitch",
    ),
    Key(
        "scale",
        Number("a scale", above=0),
        "what an emulation divides rates and bytes by",
        default="1",
        example="1000",
    ),
    Key(
        "paths",
        choice("who gives paths of light", *PATHS),
        "who gives the paths of light that synthetic jobs send on; none: their light is on always",
        default="none",
        example="nodes",
    ),
    Key("controller", CONTROLLER, "where the controller answers", example="{api: 127.0.0.1:8470}"),
    Key("queue", queue_group(USER_NAME), "how jobs wait", example="{backfill: true}"),
    Key(
        "policies",
        POLICIES,
        "who decides, and whether light follows jobs by itself",
        example="{placement: regroup, topology: regroup, defragment: true}",
    ),
    Key(
        "workers",
        WORKERS,
        "what jobs' workers may have of the servers",
        example="{images: [pytorch/*], mounts: [/srv/data], memory: 64GB}",
    ),
    Key(
        "defaults",
        DEFAULTS,
        "what equal things have in common, written once",
        example="{gpu: {model: Tesla M40}, nic: {rate: 40Gbps}}",
    ),
    Key(
        "servers",
        ListOf(SERVER, "servers"),
        "the servers, with their GPUs and NICs",
        default="none: a lab of switches alone",
    ),
    Key(
        "packet_switches",
        ListOf(PACKET_SWITCH, "packet switches"),
        "the switches that forward packets (ToR, aggregator, core)",
        default="none",
    ),
    Key(
        "circuit_switches",
        ListOf(CIRCUIT_SWITCH, "circuit switches"),
        "the optical circuit switches",
        default="none",
    ),
    Key(
        "wavelength_switches",
        ListOf(WAVELENGTH_SWITCH, "wavelength switches"),
        "the wavelength-selective switches (WSS)",
        default="none",
        example="[{name: wss1, inputs: 4}]",
    ),
    Key(
        "passive_parts",
        ListOf(passive_part_group(DEVICE_NAME), "passive parts"),
        "couplers, AWG routers and multiplexers",
        default="none",
        example="[{name: mux1, kind: multiplexer, channels: 193.100-193.250}]",
    ),
    Key("fibres", ListOf(FIBRE, "fibres"), "the fibre pairs between ports", default="none"),
)
