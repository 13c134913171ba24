"""Defines REST responses about the lab: status, links, samples, events, access, discovery."""

from typing import Literal

from patchlight.testbed.wire.rest import Absent, Answer


class PolicyFaultsAnswer(Answer):
    """How often a policy failed and the default decided, and the latest error."""

    kind: str
    policy: str
    faults: int
    last: str


class LightStatus(Answer):
    """Whether circuits are rewired automatically, and the latest result (Unix time)."""

    defragment: bool
    looked_at: float | None
    words: str


class PartStatus(Answer):
    """A background task of the controller, and its latest error."""

    name: str
    running: bool
    faults: int
    last_fault: str
    last_fault_at: float | None


class PacketSwitchStatus(Answer):
    """A packet switch; ``second_from``: from where another one reports the same id,
    ``snmp_problem``: why its telemetry does not work.

    ``connected`` is null for one that learns, which is not asked; ``trouble``: why another does
    not answer. ``lacks``: refused entries, like "lacks 4 flow entries: table full". ``foreign``:
    entries of others that go before Patchlight's. ``without_groups``: it has fixed paths only.
    ``ports_down``: ports to other packet switches that have no link. ``ports_missing``: the lab
    file's ports that it does not have, like "tor1 has no port 3".
    """

    name: str
    driver: str
    datapath_id: int | None
    connected: bool | None
    trouble: str | None
    second_from: str | None
    lacks: str | None
    foreign: list[str]
    snmp_problem: str | None
    without_groups: bool
    ports_down: list[int]
    ports_missing: list[str]


class CircuitSwitchStatus(Answer):
    """Whether an OCS answers; if not, since when and why."""

    name: str
    reachable: bool
    since: float | None
    words: str


class AgentStatusAnswer(Answer):
    """The state of an agent: ``words`` say why it does not answer, ``problems`` list others, and
    ``workers`` what it runs workers as: ``docker`` or ``process``."""

    server: str
    reachable: bool
    presence: Literal["not seen yet", "answers", "suspected", "lost"]
    silence_s: float
    words: str
    version: str | None
    workers: str | None = None
    problems: list[str]


class HostWithoutLink(Answer):
    """A host that reaches no packet switch, or no other host, and why."""

    host: str
    reason: str


PoliciesInUse = dict[str, str | bool | None]
"""The present policies, by kind, and whether ``defragment`` and ``interleave`` are on."""


class Status(Answer):
    """Which parts of the lab answer."""

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


class Via(Answer):
    """A circuit that a link uses."""

    ocs: str
    inp: int
    out: int
    channel: str | Absent = None


class Link(Answer):
    """Two ports joined by these circuits."""

    a: str
    b: str
    rate_bps: float | None
    via: list[Via]


class TopologyGpu(Answer):
    """A GPU, its NIC, and the packet switch that it is connected to."""

    name: str
    model: str
    nic: str
    switch: str | None
    rate_bps: int | None


class TopologyNodeAnswer(Answer):
    """A server, and the packet switch and blocks that its NICs are connected to."""

    name: str
    switch: str | None
    block: str | None
    fabric: str | None
    gpus: list[TopologyGpu]


class TopologySwitch(Answer):
    """A packet switch that servers are connected to."""

    name: str
    block: str
    fabric: str
    nodes: list[str]


class Trunk(Answer):
    """A link between two packet switches."""

    a: str
    b: str
    rate_bps: int | None


class TopologyShape(Answer):
    """Nodes, packet switches and trunks with the present circuits."""

    lab: str
    nodes: list[TopologyNodeAnswer]
    switches: list[TopologySwitch]
    links: list[Trunk]
    unread: dict[str, str]


class PortSample(Answer):
    """The rates of a host at its port of a packet switch (port 0: it is connected to none), and who
    counted: the switch, by SNMP or its driver, or the host's NIC."""

    at: float
    host: str
    switch: str
    port: int
    by: Literal["snmp", "switch", "nic"]
    rx_bps: float
    tx_bps: float


class GpuSample(Answer):
    """A GPU's utilisation since the previous sample (0 to 1), and its total busy time."""

    at: float
    gpu: str
    utilization: float
    busy_s: float | None


class SpreadShape(Answer):
    """The mean of a value, and its minimum and maximum."""

    mean: float
    least: float
    most: float


class WindowShape(Answer):
    """Measurements since a Unix time: see ``patchlight.controller.storage.series_store``."""

    at: int
    gpus: int
    busy: SpreadShape | None
    sent_bps: SpreadShape | None
    iterations: int
    iteration_s: SpreadShape | None
    predicted_s: float | None


class Samples(Answer):
    """A period in windows of ``width_s`` seconds, oldest first; jobs by their ids."""

    width_s: int
    lab: list[WindowShape]
    jobs: dict[str, list[WindowShape]]


class EventShape(Answer, extra="allow"):
    """An event; further fields depend on its kind."""

    number: int
    at: float
    kind: str


class EventList(Answer, extra="allow"):
    """Events, oldest first, and the number of the latest of all."""

    events: list[EventShape]
    last: int


class WhoAmI(Answer):
    """The caller's identity."""

    user: str
    role: str
    origin: str


class TokenShape(Answer):
    """A token's record; it is valid for its ``user`` until then, unless revoked."""

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
    """A new token; its text, ``token``, is only shown now."""

    token: str


class AttemptRow(Answer):
    """A request for a change."""

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


class FoundPortAnswer(Answer):
    """What ``sends`` into a port of an OCS, ``hears`` its output, and the lab file ``said``."""

    ocs: str
    port: int
    sends: str | None
    hears: str | None
    said: str | None
    verdict: str
    words: str


class Wiring(Answer):
    """The findings; ``silent``: ends that were not heard, and why."""

    ports: list[FoundPortAnswer]
    differences: list[str]
    doubts: list[str]
    silent: dict[str, str]
    fibres: list[tuple[str, str]]


class Search(Answer):
    """The progress of a search, or the result of the last one.

    ``rounds_left`` is the most that can be left; ``open``: circuits are not in their places.
    ``step`` grows with each update.
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


class SearchPlan(Answer):
    """What a search would test, which links go down, how long it takes, and objections."""

    ports: dict[str, list[int]]
    circuits: dict[str, list[str]]
    rounds: int
    takes_s: float
    objections: list[str]


class LabShape(Answer):
    """The controller's lab."""

    name: str
    file: str
    fingerprint: str


class Shutdown(Answer):
    """How many jobs are in each state that is not final."""

    jobs: dict[str, int]


class LinksAnswer(Answer):
    """The present links; ``unread`` has switches whose maps are unknown, and why."""

    unread: dict[str, str]
    links: list[Link]


class PortSamples(Answer):
    """Measured rates, oldest first."""

    ports: list[PortSample]


class GpuSamples(Answer):
    """GPU measurements, oldest first."""

    gpus: list[GpuSample]


class TokensShape(Answer):
    """Every token."""

    tokens: list[TokenShape]


class AuditShape(Answer):
    """The audit log."""

    attempts: list[AttemptRow]
