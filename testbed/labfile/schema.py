"""Defines the keys of a lab file, each with its type and the field of the model that it fills."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, create_model

from patchlight.testbed.io.keys import (
    Keys,
    YesNo,
    choice,
    key,
    listing,
    needed,
    number,
    optional,
)
from patchlight.testbed.lab import model
from patchlight.testbed.lab.rules import SNMP_HASHES, Snmp, SshAccess
from patchlight.testbed.labfile import optical_schema as optical
from patchlight.testbed.labfile import values as v
from patchlight.testbed.labfile.sections import (
    AccessKeys,
    PoliciesKeys,
    Poll,
    QueueKeys,
    WorkersKeys,
)

PATHS = ("none", "nodes")


class GpuKeys(Keys, title="a GPU"):
    """A GPU of a server."""

    makes = model.Gpu

    name: v.PartName = needed("its name, like 'gpu0'", "gpu0")
    model: v.GpuModel = needed("the model, like 'Tesla M40'")
    uuid: v.Uuid = key("UUID of the physical GPU on a real server")


class RendezvousKeys(Keys, title="a rendezvous"):
    """A second network of a worker."""

    makes = model.Rendezvous

    interface: v.Interface = needed("the server's interface below it", "eno1")
    address: v.InterfaceAddress = needed(
        "the worker's address there, with its network"
    )


class NicKeys(Keys, title="a NIC"):
    """A NIC port of a server."""

    makes = v.nic
    like = model.Nic

    name: v.PartName = needed("its name, like 'nic0'")
    address: v.Address = needed("its IPv4 address in the lab's network")
    rate_bps: v.Rate = key("its line rate", "no limit")
    gpu: v.PartName = key(
        "the GPU that it serves, in the same server", example="gpu0"
    )
    mac: v.Mac = key(
        "the MAC address of its workers: the port's (hardware), derived from the IPv4 address "
        "(lab), or a given one",
        "hardware; with mode macvlan, lab",
    )
    interface: v.Interface = key(
        "its interface name on the server", "its name"
    )
    mode: v.NicMode = key(
        "the worker's interface: the NIC itself (physical; veth in an emulation), a virtual "
        "function (sriov) or a macvlan; auto prefers a virtual function",
        example="sriov",
    )
    mtu: v.Mtu = key("the MTU in the worker", "the server's", "9000")
    vlan: v.Vlan = key("the VLAN of its workers", "none", "100")
    routes: Annotated[tuple[v.Route, ...], listing("routes")] = key(
        "additional routes of the worker", "none"
    )
    dscp: v.Dscp = key("the DSCP of NCCL's RDMA packets", "none", "26")
    rdma: v.RdmaUse = key(
        "how a worker gets an RDMA device; auto: if the NIC has one"
    )
    relock_s: v.Time = key(
        "the time in which its carrier and RDMA port must return after a change of circuits",
        "workers continue immediately; with RDMA within 10s",
        "2s",
    )
    rendezvous: RendezvousKeys = key(
        "a second network for its worker, over another interface of the server",
        example="{interface: eno1, address: 10.0.0.51/24}",
    )
    transceiver: optical.TransceiverKeys = key(
        "its transceiver, if the lab has wavelength channels",
        "a signal without a channel",
        "{tunable: 191.350-196.100, tuning_time: 1ms}",
    )
    launch_power_dbm: v.Power = key("optical launch power of its ports")

    @staticmethod
    def said(value: Any) -> dict[str, Any]:
        """Whose MAC address its workers have."""
        return {"mac": v.said_mac(value)}


class SshKeys(Keys, title="a server's SSH"):
    """How to log in to a server."""

    makes = SshAccess

    address: v.SshHost = key("its host", "the host of management")
    port: v.TcpPort = key("its TCP port")
    user: v.UserName = key("the login", "as configured in the SSH client")
    identity: v.FilePath = key(
        "the private key file", "as configured in the SSH client"
    )
    host_key: v.HostKey = key(
        "the fingerprint of its host key", "the one in known_hosts"
    )
    legacy: YesNo = key("allow old SSH algorithms", "false")
    jump: v.Jump = key("the jump host: [USER@]HOST[:PORT]", "none")
    jump_host_key: v.HostKey = key(
        "that host's fingerprint", "the one in known_hosts"
    )


class ServerKeys(Keys, title="a server"):
    """A server with its GPUs and NICs."""

    makes = model.Server
    block = True

    name: v.DeviceName = needed("its name, like 'server1'")
    management: v.Management = key(
        "the address of the server's agent: host:port or unix:/path"
    )
    ssh: SshKeys = key("how to log in by SSH", example="{user: admin}")
    gpus: Annotated[tuple[GpuKeys, ...], listing("GPUs")] = key(
        "its GPUs", "none"
    )
    emulated_gpus: YesNo = key(
        "the server has real GPUs: 'deploy push' does not emulate them"
    )
    nics: Annotated[tuple[NicKeys, ...], listing("NICs")] = needed(
        "its NIC ports in the lab's network"
    )


_Variable = Annotated[str, replace(v.VARIABLE_NAME, example="TOR1_SNMP")]


class SnmpKeys(Keys, title="SNMP of a packet switch"):
    """How SNMP reads a switch."""

    makes = Snmp

    address: v.HostPort = needed(
        "its address, host:port (UDP)", "10.0.0.2:161"
    )
    community_env: _Variable = key(
        "version 2c: the variable with the community", "public"
    )
    user: v.UserName = key("version 3: its user")
    auth_env: _Variable = key(
        "version 3: the variable with the user's password", "none"
    )
    auth: Annotated[str, choice("a hash", *SNMP_HASHES)] = key(
        "version 3: how the password authenticates"
    )
    priv_env: _Variable = key(
        "version 3: the variable with the password of AES-128", "none"
    )


def _snmp(*, snmp: Snmp) -> Snmp:
    return snmp


class TelemetryKeys(Keys, title="telemetry"):
    """Where a switch's counters come from."""

    makes = _snmp

    snmp: SnmpKeys = needed("how SNMP reads its counters and LLDP neighbours")

    @staticmethod
    def said(value: Any) -> dict[str, Any]:
        """SNMP, the only way."""
        return {"snmp": value}


class PacketSwitchKeys(Keys, title="a packet switch"):
    """A packet switch."""

    makes = v.packet_switch
    like = model.PacketSwitch

    name: v.DeviceName = needed("its name, like 'tor1'", "tor1")
    driver: v.PacketDriver = key("its driver")
    datapath_id: v.DatapathId = key(
        "its OpenFlow datapath id; needed with openflow", example="0x1"
    )
    ports: v.PacketPorts = needed("the number of ports", "48")
    transceivers: optical.Transceivers = key(
        "its transceivers by port number, if the lab has wavelength channels",
        "signals without a channel",
    )
    launch_power_dbm: v.Power = key("optical launch power of its ports")
    address: v.HostPort = key(
        "its SSH access; needed with linux-bridge and sonic",
        "none",
        "10.0.0.7:22",
    )
    user: v.UserName = key("the login")
    password_env: v.VariableName = key(
        "the variable with the password", "any is accepted"
    )
    legacy_ssh: YesNo = key("allow old SSH algorithms")
    identity: v.FilePath = key(
        "the private key file, for a login without a password"
    )
    host_key: v.HostKey = key(
        "the fingerprint of its host key", "the first one seen"
    )
    interfaces: Annotated[
        tuple[v.SwitchInterface, ...], listing("interfaces")
    ] = key(
        "its names of ports 1, 2, …",
        "swp1, swp2, …; with sonic those of its port table",
        '["swp[1-48]"]',
    )
    bridge: v.Interface = key("its bridge, with linux-bridge", example="br0")
    vlan: v.Vlan = key("the VLAN of the lab's ports; needed with sonic")
    mtu: v.Mtu = key(
        "the largest packet that its ports carry", "that of the NICs", "9216"
    )
    spanning_tree: YesNo = key(
        "it runs a spanning tree, which makes loops of switches harmless"
    )
    snmp: TelemetryKeys = key(
        "another source of its counters", "its driver", alias="telemetry"
    )

    @staticmethod
    def said(value: Any) -> dict[str, Any]:
        """Its address, if it has one."""
        return {"address": value.address or None}


class CircuitSwitchKeys(Keys, title="a circuit switch"):
    """An optical circuit switch."""

    makes = v.circuit_switch
    like = model.CircuitSwitch
    block = True

    name: v.DeviceName = needed("its name, like 'ocs1'", "ocs1")
    driver: v.Driver = needed("its driver, like 'calient-tl1'")
    address: v.HostPort = needed(
        "its address, host:port; with driver openflow, the address where Patchlight listens for it"
    )
    datapath_id: v.DatapathId = key(
        "its OpenFlow id, with that driver", example="0x51"
    )
    ports: v.CircuitPorts = needed("the number of duplex ports", "320")
    switching_time_s: v.Time = key("the outage of a new circuit")
    insertion_loss_db: v.Loss = key("its insertion loss")
    user: v.UserName = key("the login")
    password_env: v.VariableName = key(
        "the variable with the password", "any is accepted"
    )
    legacy_ssh: YesNo = key("allow old SSH algorithms")
    cross_connects: Annotated[
        tuple[v.Circuit, ...], listing("cross-connects")
    ] = key(
        "the initial circuits: a-b both ways, a>b one way",
        "none",
        "[1-7, 2>8]",
    )
    emulated: optical.EmulatedKeys = optical.emulated()

    @staticmethod
    def said(value: Any) -> dict[str, Any]:
        """Its initial circuits."""
        return {"cross_connects": value.initial.texts or None}


class FibreKeys(Keys, title="a fibre"):
    """A pair of fibres between two ports."""

    makes = v.fibre
    like = model.Fibre

    ends: Annotated[
        tuple[v.Port, ...],
        Field(
            title="a list of ends",
            min_length=2,
            max_length=2,
        ),
    ] = needed(
        "the ports at its ends, like [server1.nic0, ocs1.1] or server1.nic0 - ocs1.1",
        "[server1.nic0, ocs1.1]",
    )
    rate_bps: v.Rate = key("its rate", "no limit")
    loss_db: v.Loss = key("its loss")
    delay_s: v.Time = key("the delay of each packet in an emulation, each way")
    jitter_s: v.Time = key("the variation of that delay, up and down")
    packet_loss: v.Share = key("the share of packets lost in an emulation")

    @staticmethod
    def said(value: Any) -> dict[str, Any]:
        """Its two ports."""
        return {"ends": (value.a, value.b)}


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
        "user",
        "password_env",
        "legacy_ssh",
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
    group: type[Keys],
    owner: str = "",
) -> tuple[Any, Any]:
    """The key of ``defaults`` with what items of a kind may share."""
    declared: Any = {
        name: optional(info)
        for name, info in group.model_fields.items()
        if info.alias in COMMON[kind]
    }
    made = create_model(
        f"Common{group.__name__}",
        __base__=Keys,
        __cls_kwargs__={
            "title": f"the defaults of {group.model_config['title']}"
        },
        **declared,
    )
    made.like = group.like or group.makes
    return made, key(f"defaults for each {owner or kind.replace('_', ' ')}")


_DEFAULTS: Any = {
    "ssh": _defaults("ssh", SshKeys, "server's SSH"),
    "gpu": _defaults("gpu", GpuKeys),
    "nic": _defaults("nic", NicKeys),
    "packet_switch": _defaults("packet_switch", PacketSwitchKeys),
    "circuit_switch": _defaults("circuit_switch", CircuitSwitchKeys),
    "fibre": _defaults("fibre", FibreKeys),
}
DefaultsKeys: Any = create_model(
    "DefaultsKeys",
    __base__=Keys,
    __cls_kwargs__={"title": "the defaults"},
    **_DEFAULTS,
)


class ControllerKeys(Keys, title="the controller"):
    """The controller's addresses."""

    like = model.Lab

    controller_api: v.HostPort = key(
        "the address of its REST API; other machines need --tls and a token",
        "a Unix socket of this lab",
        "127.0.0.1:8470",
        alias="api",
    )
    controller_openflow: v.HostPort = key(
        "its OpenFlow address", example="10.0.0.1:6653", alias="openflow"
    )
    controller_openflow_tls: YesNo = key(
        "packet switches use TLS", alias="openflow_tls"
    )
    controller_poll_s: Poll = key(
        "the interval of polls of each agent; a fifth of it where a job runs",
        "1s",
        "10s",
        alias="poll",
    )
    access: AccessKeys = key(
        "the role of its machine's users other than root",
        example="{group: optics, others: nobody}",
    )


class LabKeys(Keys, title="a lab"):
    """A whole lab file."""

    makes = v.lab
    like = model.Lab
    block = True

    name: v.LabName = needed("its name")
    network: v.Network = key(
        "the IPv4 network of the NICs; needed with servers", "none"
    )
    fabric: Annotated[str, choice("a fabric", *model.FABRICS)] = key(
        "the packet switches of an emulation"
    )
    scale: Annotated[float, number("a scale", gt=0)] = key(
        "the divisor of emulated rates", "chosen", "1000"
    )
    machine_rate_bps: v.Rate = key(
        "the total rate of the emulating machine", "no limit", "9Gbps"
    )
    paths: Annotated[str, choice("a scheduler of optical paths", *PATHS)] = (
        key(
            "the scheduler of synthetic jobs' optical paths; none: their circuits stay up",
            "none",
            "nodes",
        )
    )
    ecmp: YesNo = key("OpenFlow switches hash flows over equal-cost paths")
    controller: ControllerKeys = key(
        "the controller's addresses", example="{api: 127.0.0.1:8470}"
    )
    queue: QueueKeys = key(
        "the rules of the queue", example="{backfill: true}"
    )
    policies: PoliciesKeys = key(
        "the policies, and automatic rewiring",
        example="{placement: regroup, topology: regroup, defragment: true}",
    )
    workers: WorkersKeys = key(
        "limits of workers", example="{images: [pytorch/*], memory: 64GB}"
    )
    defaults: DefaultsKeys = key(
        "values that several items share", example="{gpu: {model: A100}}"
    )
    servers: Annotated[tuple[ServerKeys, ...], listing("servers")] = key(
        "with their GPUs and NICs", "none: switches only"
    )
    packet_switches: Annotated[
        tuple[PacketSwitchKeys, ...], listing("packet switches")
    ] = key("ToRs and other packet switches", "none")
    circuit_switches: Annotated[
        tuple[CircuitSwitchKeys, ...], listing("circuit switches")
    ] = key("optical switches", "none")
    wavelength_switches: Annotated[
        tuple[optical.WavelengthSwitchKeys, ...],
        listing("wavelength switches"),
    ] = key(
        "the wavelength-selective switches (WSS)",
        "none",
        "[{name: wss1, inputs: 4}]",
    )
    passive_parts: Annotated[
        tuple[optical.PassivePartKeys, ...], listing("passive parts")
    ] = key(
        "couplers, AWG routers and multiplexers",
        "none",
        "[{name: mux1, kind: multiplexer, channels: 193.100-193.250}]",
    )
    fibres: Annotated[tuple[FibreKeys, ...], listing("fibres")] = key(
        "the fibre pairs between ports", "none"
    )

    @staticmethod
    def said(value: Any) -> dict[str, Any]:
        """The controller's keys, which are fields of the lab."""
        return {"controller": value}
