"""The lab and its controller: who is there, which links light makes, what was measured."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from patchlight.testbed.wire.rest import exactly


@exactly
class LabShape(TypedDict):
    """Which lab the controller has."""

    name: str
    file: str
    fingerprint: str


@exactly
class PolicyFaults(TypedDict):
    """How often a policy failed, and the default decided."""

    kind: str
    policy: str
    faults: int


@exactly
class LightStatus(TypedDict):
    """Whether light follows jobs by itself, and what came of the last look (Unix time)."""

    defragment: bool
    looked_at: float | None
    words: str


@exactly
class PartStatus(TypedDict):
    """A part of the controller that runs in the background, and of what it failed last."""

    name: str
    running: bool
    faults: int
    last_fault: str
    last_fault_at: float | None


@exactly
class PacketSwitchStatus(TypedDict):
    """A packet switch; ``second_from``: from where another one says that it is this one."""

    name: str
    datapath_id: int
    connected: bool
    second_from: str | None


@exactly
class CircuitSwitchStatus(TypedDict):
    """Whether an OCS answers, else since when it does not, and why."""

    name: str
    reachable: bool
    since: float | None
    words: str


@exactly
class AgentStatus(TypedDict):
    """How an agent is: ``words`` say why it is silent, ``problems`` what else is wrong."""

    server: str
    reachable: bool
    presence: Literal["not heard of yet", "answers", "suspected", "lost"]
    silence_s: float
    words: str
    version: str | None
    problems: list[str]


PoliciesInUse = dict[str, str | bool | None]
"""What decides now, by kind, and under ``defragment`` whether light follows jobs."""


@exactly
class Status(TypedDict):
    """Who is there and who is not."""

    lab: str
    version: str
    engine: str | None
    policies: PoliciesInUse
    policy_faults: list[PolicyFaults]
    light: LightStatus
    drained: bool
    queue_pass_s: float | None
    parts: list[PartStatus]
    switches: list[PacketSwitchStatus]
    nic_differences: list[str]
    unknown_switch_connections: int
    circuit_switches: list[CircuitSwitchStatus]
    agents: list[AgentStatus]


@exactly
class Shutdown(TypedDict):
    """How many jobs there are in each state that is not an end."""

    jobs: dict[str, int]


@exactly
class Via(TypedDict):
    """A circuit that a link goes through."""

    ocs: str
    inp: int
    out: int
    channel: NotRequired[str]


@exactly
class Link(TypedDict):
    """Two ports that light joins, by way of these circuits."""

    a: str
    b: str
    rate_bps: float | None
    via: list[Via]


@exactly
class Links(TypedDict):
    """The links that light makes now; ``unread`` says which switches are not known, and why."""

    unread: dict[str, str]
    links: list[Link]


@exactly
class TopologyGpu(TypedDict):
    """A GPU, its NIC, and the packet switch that this is lit to."""

    name: str
    model: str
    nic: str
    switch: str | None
    rate_bps: int | None


@exactly
class TopologyNode(TypedDict):
    """A server, and the packet switch and the blocks that all its NICs are lit to."""

    name: str
    switch: str | None
    block: str | None
    fabric: str | None
    gpus: list[TopologyGpu]


@exactly
class TopologySwitch(TypedDict):
    """A packet switch that servers are lit to."""

    name: str
    block: str
    fabric: str
    nodes: list[str]


@exactly
class Trunk(TypedDict):
    """A link between two packet switches."""

    a: str
    b: str
    rate_bps: int | None


@exactly
class TopologyShape(TypedDict):
    """Nodes, packet switches and trunks as they are lit."""

    lab: str
    nodes: list[TopologyNode]
    switches: list[TopologySwitch]
    links: list[Trunk]
    unread: dict[str, str]


@exactly
class PortSample(TypedDict):
    """The rates of a host at its port of a packet switch."""

    at: float
    host: str
    switch: str
    port: int
    rx_bps: float
    tx_bps: float


@exactly
class PortSamples(TypedDict):
    """Rates that were measured, the oldest first."""

    ports: list[PortSample]


@exactly
class GpuSample(TypedDict):
    """How busy a GPU was since the sample before (0 to 1), and how long in all."""

    at: float
    gpu: str
    utilization: float
    busy_s: float | None


@exactly
class GpuSamples(TypedDict):
    """What was measured of GPUs, the oldest first."""

    gpus: list[GpuSample]


@exactly
class SpreadShape(TypedDict):
    """The mean of something, and between what it was."""

    mean: float
    least: float
    most: float


@exactly
class WindowShape(TypedDict):
    """What was measured from a Unix time on: see ``patchlight.controller.storage.series_store``."""

    at: int
    gpus: int
    busy: SpreadShape | None
    sent_bps: SpreadShape | None
    iterations: int
    iteration_s: SpreadShape | None
    predicted_s: float | None


@exactly
class Samples(TypedDict):
    """A period in windows that are ``width_s`` long, the oldest first; jobs by their ids."""

    width_s: int
    lab: list[WindowShape]
    jobs: dict[str, list[WindowShape]]
