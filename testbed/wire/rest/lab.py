"""REST answers about the lab: status, links, samples, events, access, discovery of the wiring."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from patchlight.testbed.wire.rest import answer, close


class PolicyFaultsAnswer(TypedDict):
    """How often a policy failed, so that the default decided, and how it failed last."""

    kind: str
    policy: str
    faults: int
    last: str


class LightStatus(TypedDict):
    """Whether light follows jobs by itself, and what came of the last look (Unix time)."""

    defragment: bool
    looked_at: float | None
    words: str


class PartStatus(TypedDict):
    """A part of the controller that runs in the background, and of what it failed last."""

    name: str
    running: bool
    faults: int
    last_fault: str
    last_fault_at: float | None


class PacketSwitchStatus(TypedDict):
    """A packet switch; ``second_from``: from where another one says that it is this one.

    ``lacks``: the flow entries that it refused, like "lacks 4 flow entries: table full".
    """

    name: str
    datapath_id: int
    connected: bool
    second_from: str | None
    lacks: str | None


class CircuitSwitchStatus(TypedDict):
    """Whether an OCS answers, else since when it does not, and why."""

    name: str
    reachable: bool
    since: float | None
    words: str


class AgentStatusAnswer(TypedDict):
    """How an agent is: ``words`` say why it is silent, ``problems`` what else is wrong."""

    server: str
    reachable: bool
    presence: Literal["not heard of yet", "answers", "suspected", "lost"]
    silence_s: float
    words: str
    version: str | None
    problems: list[str]


class HostWithoutLink(TypedDict):
    """A host that reaches no packet switch, or no other host, and why."""

    host: str
    reason: str


PoliciesInUse = dict[str, str | bool | None]
"""What decides now, by kind, and under ``defragment`` whether light follows jobs."""


class Status(TypedDict):
    """Who is there and who is not."""

    lab: str
    version: str
    engine: str | None
    policies: PoliciesInUse
    policy_faults: list[PolicyFaultsAnswer]
    light: LightStatus
    drained: bool
    queue_pass_s: float | None
    parts: list[PartStatus]
    switches: list[PacketSwitchStatus]
    nic_differences: list[str]
    hosts_without_link: list[HostWithoutLink]
    unknown_switch_connections: int
    circuit_switches: list[CircuitSwitchStatus]
    agents: list[AgentStatusAnswer]


class Via(TypedDict):
    """A circuit that a link goes through."""

    ocs: str
    inp: int
    out: int
    channel: NotRequired[str]


class Link(TypedDict):
    """Two ports that light joins, by way of these circuits."""

    a: str
    b: str
    rate_bps: float | None
    via: list[Via]


class TopologyGpu(TypedDict):
    """A GPU, its NIC, and the packet switch that this is lit to."""

    name: str
    model: str
    nic: str
    switch: str | None
    rate_bps: int | None


class TopologyNodeAnswer(TypedDict):
    """A server, and the packet switch and the blocks that all its NICs are lit to."""

    name: str
    switch: str | None
    block: str | None
    fabric: str | None
    gpus: list[TopologyGpu]


class TopologySwitch(TypedDict):
    """A packet switch that servers are lit to."""

    name: str
    block: str
    fabric: str
    nodes: list[str]


class Trunk(TypedDict):
    """A link between two packet switches."""

    a: str
    b: str
    rate_bps: int | None


class TopologyShape(TypedDict):
    """Nodes, packet switches and trunks as they are lit."""

    lab: str
    nodes: list[TopologyNodeAnswer]
    switches: list[TopologySwitch]
    links: list[Trunk]
    unread: dict[str, str]


class PortSample(TypedDict):
    """The rates of a host at its port of a packet switch."""

    at: float
    host: str
    switch: str
    port: int
    rx_bps: float
    tx_bps: float


class GpuSample(TypedDict):
    """How busy a GPU was since the sample before (0 to 1), and how long in all."""

    at: float
    gpu: str
    utilization: float
    busy_s: float | None


class SpreadShape(TypedDict):
    """The mean of something, and between what it was."""

    mean: float
    least: float
    most: float


class WindowShape(TypedDict):
    """What was measured from a Unix time on: see ``patchlight.controller.storage.series_store``."""

    at: int
    gpus: int
    busy: SpreadShape | None
    sent_bps: SpreadShape | None
    iterations: int
    iteration_s: SpreadShape | None
    predicted_s: float | None


class Samples(TypedDict):
    """A period in windows that are ``width_s`` long, the oldest first; jobs by their ids."""

    width_s: int
    lab: list[WindowShape]
    jobs: dict[str, list[WindowShape]]


class EventShape(TypedDict):
    """Something that happened; what else is there depends on its kind."""

    number: int
    at: float
    kind: str


class EventList(TypedDict):
    """What happened, the oldest first, and the number of the latest event of all."""

    events: list[EventShape]
    last: int


class WhoAmI(TypedDict):
    """Who one is to the controller."""

    user: str
    role: str
    origin: str


class TokenShape(TypedDict):
    """What is known of a token; it lets its ``user`` in until then, unless it was revoked."""

    id: str
    user: str
    role: str
    created_at: float
    created_by: str
    expires_at: float
    why: str
    revoked_at: float | None
    revoked_by: str


class NewToken(TokenShape):
    """A token that was just made; its text, ``token``, is told only now."""

    token: str


class AttemptRow(TypedDict):
    """An attempt to change something."""

    number: int
    at: float
    by: str
    origin: str
    role: str
    what: str
    outcome: Literal["done", "refused", "failed", "unknown"]
    status: int
    why: str
    token: str
    about: str
    repeated: int


class FoundPortAnswer(TypedDict):
    """What ``sends`` into a port of an OCS, what ``hears`` what goes out there, and what the lab
    file ``said``."""

    ocs: str
    port: int
    sends: str | None
    hears: str | None
    said: str | None
    verdict: str
    words: str


class Wiring(TypedDict):
    """What was found; ``silent``: ends that were not heard, and why."""

    ports: list[FoundPortAnswer]
    differences: list[str]
    doubts: list[str]
    silent: dict[str, str]
    fibres: list[tuple[str, str]]


class Search(TypedDict):
    """How far the search is, or what the last one came to.

    ``rounds_left`` is the most that can be left; ``open``: circuits are away from their places.
    ``step`` is a number that grows with each news of it.
    """

    step: int
    state: Literal["idle", "looking", "restoring", "done", "stopped", "failed"]
    by: str
    rounds_done: int
    rounds_left: int
    began_at: float
    took_s: float
    left_s: float
    message: str
    hint: str | None
    wiring: Wiring | None
    open: bool


class SearchPlan(TypedDict):
    """What a search would look at, what goes dark, how long it takes, what is against it."""

    ports: dict[str, list[int]]
    circuits: dict[str, list[str]]
    rounds: int
    takes_s: float
    objections: list[str]


LabShape = answer("LabShape", "Which lab the controller has.", name=str, file=str, fingerprint=str)
Shutdown = answer(
    "Shutdown", "How many jobs there are in each state that is not an end.", jobs=dict[str, int]
)
Links = answer(
    "Links",
    "The links that light makes now; ``unread`` says which switches are not known, and why.",
    unread=dict[str, str],
    links=list[Link],
)
PortSamples = answer(
    "PortSamples", "Rates that were measured, the oldest first.", ports=list[PortSample]
)
GpuSamples = answer(
    "GpuSamples", "What was measured of GPUs, the oldest first.", gpus=list[GpuSample]
)
TokensShape = answer("TokensShape", "Every token that was made.", tokens=list[TokenShape])
AuditShape = answer("AuditShape", "Who wanted to change what.", attempts=list[AttemptRow])

close(globals(), but=("EventShape", "EventList"))
