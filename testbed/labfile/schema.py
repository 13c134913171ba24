"""Defines the keys of a lab file, each with its type and the field of the model that it fills."""

from dataclasses import replace

from patchlight.testbed.io.fields import Group, Key, ListOf, choice, required
from patchlight.testbed.io.forms import Number, YesNo
from patchlight.testbed.lab import model
from patchlight.testbed.lab.rules import SNMP_HASHES, Snmp, SshAccess
from patchlight.testbed.labfile import optical_schema as optical
from patchlight.testbed.labfile import values as v
from patchlight.testbed.labfile.sections import (
    ACCESS,
    POLICIES,
    POLL,
    QUEUE,
    WORKERS,
)

FABRICS = ("openvswitch", "bridge")
PATHS = ("none", "nodes")

LAUNCH_POWER = Key(
    "launch_power", v.POWER, "optical launch power of its ports"
)
GPU = Group(
    "a GPU",
    required(
        "name",
        v.PART_NAME,
        "its name, like 'gpu0'",
        example="gpu0",
    ),
    required("model", v.MODEL, "the model, like 'Tesla M40'"),
    Key("uuid", v.UUID, "UUID of the physical GPU on a real server"),
    model=model.Gpu,
)
RENDEZVOUS = Group(
    "a rendezvous",
    required(
        "interface",
        v.INTERFACE,
        "the server's interface below it",
        example="eno1",
    ),
    required(
        "address",
        v.INTERFACE_ADDRESS,
        "the worker's address there, with its network",
    ),
    model=model.Rendezvous,
)
NIC = Group(
    "a NIC",
    required("name", v.PART_NAME, "its name, like 'nic0'"),
    required("address", v.ADDRESS, "its IPv4 address in the lab's network"),
    Key(
        "rate",
        v.RATE,
        "its line rate",
        default="no limit",
    ),
    Key(
        "gpu",
        v.PART_NAME,
        "the GPU of the same server that it serves",
        example="gpu0",
    ),
    Key(
        "mac",
        v.MAC,
        "the MAC address of its workers: that of the port (hardware), derived from the IPv4 "
        "address (lab), or this one",
        default="hardware; with mode macvlan, lab",
    ),
    Key(
        "interface",
        v.INTERFACE,
        "its interface name on the server",
        default="its name",
    ),
    Key(
        "mode",
        v.NIC_MODE,
        "what a worker gets: the NIC itself (physical; veth in an emulation), a virtual "
        "function of it (sriov), or a macvlan on it; auto prefers a virtual function",
        example="sriov",
    ),
    Key(
        "mtu",
        v.MTU,
        "the MTU in the worker",
        default="the server's",
        example="9000",
    ),
    Key(
        "vlan",
        v.VLAN,
        "the VLAN of its workers",
        default="none",
        example="100",
    ),
    Key(
        "routes",
        ListOf(v.ROUTE, "routes"),
        "additional routes of the worker",
        default="none",
    ),
    Key(
        "dscp",
        v.DSCP,
        "the DSCP of NCCL's RDMA packets",
        default="none",
        example="26",
    ),
    Key(
        "rdma",
        v.RDMA_USE,
        "how a worker gets its RDMA device; auto: if it has one",
    ),
    Key(
        "relock",
        v.TIME,
        "how long its carrier, and its RDMA port, may take to return after a change of circuits",
        default="workers continue immediately; with RDMA within 10s",
        example="2s",
    ),
    Key(
        "rendezvous",
        RENDEZVOUS,
        "a second network of its worker, over another interface of the server",
        example="{interface: eno1, address: 10.0.0.51/24}",
    ),
    Key(
        "transceiver",
        optical.TRANSCEIVER,
        "its transceiver, if the lab has wavelength channels",
        default="a signal without a channel",
        example="{tunable: 191.350-196.100, tuning_time: 1ms}",
    ),
    LAUNCH_POWER,
    model=model.Nic,
    make=v.nic,
    said=lambda nic: {"mac": v.said_mac(nic)},
)
SSH = Group(
    "a server's SSH",
    Key(
        "address",
        v.SSH_HOST,
        "its host",
        default="the host of management",
    ),
    Key("port", v.TCP_PORT, "its TCP port"),
    Key(
        "user",
        v.USER_NAME,
        "the login",
        default="as the SSH client says",
    ),
    Key(
        "identity",
        v.FILE_PATH,
        "the private key file",
        default="as the SSH client says",
    ),
    Key(
        "host_key",
        v.HOST_KEY,
        "the fingerprint of its host key",
        default="what known_hosts has",
    ),
    Key(
        "legacy",
        YesNo(),
        "it may use old SSH algorithms",
        "false",
    ),
    Key(
        "jump",
        v.JUMP,
        "the jump host: [USER@]HOST[:PORT]",
        default="none",
    ),
    Key(
        "jump_host_key",
        v.HOST_KEY,
        "that host's fingerprint",
        "what known_hosts has",
    ),
    model=SshAccess,
)
SERVER = Group(
    "a server",
    required("name", v.DEVICE_NAME, "its name, like 'server1'"),
    Key(
        "management",
        v.MANAGEMENT,
        "the address of the server's agent: host:port or unix:/path",
    ),
    Key(
        "ssh",
        SSH,
        "how to log in by SSH",
        example="{user: admin}",
    ),
    Key(
        "gpus",
        ListOf(GPU, "GPUs"),
        "its GPUs",
        default="none",
    ),
    Key(
        "emulated_gpus",
        YesNo(),
        "it has real GPUs: 'deploy push' emulates none",
    ),
    required(
        "nics", ListOf(NIC, "NICs"), "its NIC ports in the lab's network"
    ),
    model=model.Server,
    block=True,
)
_VARIABLE = replace(v.VARIABLE_NAME, example="TOR1_SNMP")
SNMP = Group(
    "SNMP of a packet switch",
    required(
        "address",
        v.HOST_PORT,
        "its address, host:port (UDP)",
        example="10.0.0.2:161",
    ),
    Key(
        "community_env",
        _VARIABLE,
        "version 2c: the variable with the community",
        "public",
    ),
    Key("user", v.USER_NAME, "version 3: its user"),
    Key(
        "auth_env",
        _VARIABLE,
        "version 3: the variable with the user's password",
        "none",
    ),
    Key(
        "auth",
        choice("a hash", *SNMP_HASHES),
        "version 3: how the password authenticates",
    ),
    Key(
        "priv_env",
        _VARIABLE,
        "version 3: the variable with the password of AES-128",
        "none",
    ),
    model=Snmp,
)
TELEMETRY = Group(
    "telemetry",
    required("snmp", SNMP, "how SNMP reads its counters and LLDP neighbours"),
    make=lambda snmp: snmp,
    said=lambda snmp: {"snmp": snmp},
)
PACKET_SWITCH = Group(
    "a packet switch",
    required(
        "name",
        v.DEVICE_NAME,
        "its name, like 'tor1'",
        example="tor1",
    ),
    Key("driver", v.PACKET_DRIVER, "how it is driven"),
    Key(
        "datapath_id",
        v.DATAPATH_ID,
        "its OpenFlow datapath id; needed with openflow",
        example="0x1",
    ),
    required(
        "ports",
        v.PACKET_PORTS,
        "how many ports it has",
        example="48",
    ),
    Key(
        "transceivers",
        optical.TRANSCEIVERS,
        "its transceivers by port number, if the lab has wavelength channels",
        default="signals without a channel",
    ),
    LAUNCH_POWER,
    Key(
        "address",
        v.HOST_PORT,
        "where SSH reaches it; needed with linux-bridge and sonic",
        default="none",
        example="10.0.0.7:22",
    ),
    *optical.LOGIN,
    Key(
        "identity",
        v.FILE_PATH,
        "the private key file, for a login without a password",
    ),
    Key(
        "host_key",
        v.HOST_KEY,
        "the fingerprint of its host key",
        default="the first one seen",
    ),
    Key(
        "interfaces",
        ListOf(v.SWITCH_INTERFACE, "interfaces"),
        "its names of ports 1, 2, …",
        default="swp1, swp2, …; of sonic what its port table says",
        example='["swp[1-48]"]',
    ),
    Key(
        "bridge",
        v.INTERFACE,
        "its bridge, with linux-bridge",
        example="br0",
    ),
    Key("vlan", v.VLAN, "the VLAN of the lab's ports; needed with sonic"),
    Key(
        "mtu",
        v.MTU,
        "the largest packet that its ports carry",
        "that of the NICs",
        "9216",
    ),
    Key(
        "spanning_tree",
        YesNo(),
        "it runs a spanning tree, so loops of switches are harmless",
    ),
    Key(
        "telemetry",
        TELEMETRY,
        "where else its counters come from",
        "its driver",
        of="snmp",
    ),
    model=model.PacketSwitch,
    make=v.packet_switch,
    said=lambda switch: {"address": switch.address or None},
)
CIRCUIT_SWITCH = Group(
    "a circuit switch",
    required(
        "name",
        v.DEVICE_NAME,
        "its name, like 'ocs1'",
        example="ocs1",
    ),
    required("driver", v.DRIVER, "its driver, like 'calient-tl1'"),
    required(
        "address",
        v.HOST_PORT,
        "its address, host:port; with driver openflow, where Patchlight listens for it",
    ),
    Key(
        "datapath_id",
        v.DATAPATH_ID,
        "its OpenFlow id, with that driver",
        example="0x51",
    ),
    required(
        "ports",
        v.CIRCUIT_PORTS,
        "how many duplex ports it has",
        example="320",
    ),
    Key("switching_time", v.TIME, "the outage of a new circuit"),
    Key("insertion_loss", v.LOSS, "its insertion loss"),
    *optical.LOGIN,
    Key(
        "cross_connects",
        ListOf(v.CROSS_CONNECT, "cross-connects"),
        "the initial circuits: a-b both ways, a>b one way",
        default="none",
        example="[1-7, 2>8]",
    ),
    optical.EMULATED,
    model=model.CircuitSwitch,
    make=v.circuit_switch,
    said=lambda switch: {"cross_connects": switch.initial.texts or None},
    block=True,
)
FIBRE = Group(
    "a fibre",
    required(
        "ends",
        ListOf(v.PORT, "ends", count=2),
        "the ports at its ends, like [server1.nic0, ocs1.1] or server1.nic0 - ocs1.1",
        example="[server1.nic0, ocs1.1]",
    ),
    Key(
        "rate",
        v.RATE,
        "its rate",
        default="no limit",
    ),
    Key("loss", v.LOSS, "its loss"),
    Key("delay", v.TIME, "how long an emulation delays each packet, each way"),
    Key("jitter", v.TIME, "how much that delay varies, up and down"),
    Key(
        "packet_loss", v.SHARE, "the share of packets that an emulation loses"
    ),
    model=model.Fibre,
    make=v.fibre,
    said=lambda fibre: {"ends": (fibre.a, fibre.b)},
)
# Keys that items of a kind may share: none that identifies an item.
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
    "packet_switch": (
        "driver",
        "ports",
        "launch_power",
        *(key.name for key in optical.LOGIN),
        "identity",
        "interfaces",
        "bridge",
        "vlan",
        "mtu",
        "spanning_tree",
    ),
    "circuit_switch": (
        "driver",
        "ports",
        "switching_time",
        "insertion_loss",
        "user",
    ),
    "fibre": ("rate", "loss", "delay", "jitter", "packet_loss"),
}


def _defaults(
    kind: str,
    group: Group,
    owner: str = "",
) -> Key:
    keys = [
        replace(key, required=False)
        for key in group.keys
        if key.name in COMMON[kind]
    ]
    about = f"defaults for each {owner or kind.replace('_', ' ')}"
    return Key(kind, Group(f"the defaults of {group.what}", *keys), about)


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
        v.HOST_PORT,
        "the address of its REST API; other machines need --tls and a token",
        example="127.0.0.1:8470",
        default="a Unix socket of this lab",
        of="controller_api",
    ),
    Key(
        "openflow",
        v.HOST_PORT,
        "its OpenFlow address",
        example="10.0.0.1:6653",
        of="controller_openflow",
    ),
    Key(
        "openflow_tls",
        YesNo(),
        "packet switches use TLS",
        of="controller_openflow_tls",
    ),
    Key(
        "poll",
        POLL,
        "how often it polls each agent; five times as often those with a running job",
        default="1s",
        example="10s",
        of="controller_poll_s",
    ),
    Key(
        "access",
        ACCESS,
        "the role of its machine's users other than root",
        example="{group: optics, others: nobody}",
    ),
    model=model.Lab,
    make=dict,
)
LAB = Group(
    "a lab",
    required("name", v.LAB_NAME, "its name"),
    Key(
        "network",
        v.NETWORK,
        "the IPv4 network of the NICs; needed with servers",
        "none",
    ),
    Key(
        "fabric",
        choice("a fabric", *FABRICS),
        "the packet switches of an emulation",
    ),
    Key(
        "scale",
        Number("a scale", above=0),
        "the divisor of emulated rates",
        "chosen",
        "1000",
    ),
    Key(
        "machine_rate",
        v.RATE,
        "the total rate of the emulating machine",
        "no limit",
        "9Gbps",
    ),
    Key(
        "paths",
        choice("who grants optical paths", *PATHS),
        "who grants optical paths to synthetic jobs; none: their circuits stay up",
        default="none",
        example="nodes",
    ),
    Key(
        "ecmp",
        YesNo(),
        "OpenFlow switches hash flows over equally short paths",
    ),
    Key(
        "controller",
        CONTROLLER,
        "the controller's addresses",
        example="{api: 127.0.0.1:8470}",
    ),
    Key(
        "queue",
        QUEUE,
        "how jobs queue",
        example="{backfill: true}",
    ),
    Key(
        "policies",
        POLICIES,
        "the policies, and whether circuits are rewired automatically",
        example="{placement: regroup, topology: regroup, defragment: true}",
    ),
    Key(
        "workers",
        WORKERS,
        "limits of workers",
        example="{images: [pytorch/*], memory: 64GB}",
    ),
    Key(
        "defaults",
        DEFAULTS,
        "values that equal items share",
        example="{gpu: {model: A100}}",
    ),
    Key(
        "servers",
        ListOf(SERVER, "servers"),
        "with their GPUs and NICs",
        "none: switches only",
    ),
    Key(
        "packet_switches",
        ListOf(PACKET_SWITCH, "packet switches"),
        "ToR and the like",
        "none",
    ),
    Key(
        "circuit_switches",
        ListOf(CIRCUIT_SWITCH, "circuit switches"),
        "optical switches",
        "none",
    ),
    Key(
        "wavelength_switches",
        ListOf(optical.WAVELENGTH_SWITCH, "wavelength switches"),
        "the wavelength-selective switches (WSS)",
        default="none",
        example="[{name: wss1, inputs: 4}]",
    ),
    Key(
        "passive_parts",
        ListOf(optical.PASSIVE_PART, "passive parts"),
        "couplers, AWG routers and multiplexers",
        default="none",
        example="[{name: mux1, kind: multiplexer, channels: 193.100-193.250}]",
    ),
    Key(
        "fibres",
        ListOf(FIBRE, "fibres"),
        "the fibre pairs between ports",
        default="none",
    ),
    model=model.Lab,
    make=v.lab,
    said=lambda lab: {"controller": lab},
    block=True,
)
