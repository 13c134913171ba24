"""How each vendor's HTTP interface differs, as data: paths, bodies, keys and patterns.

See ``patchlight.controller.circuits.dialects`` for how a user corrects one. Paths begin below
``base``. Bodies are templates of JSON text, so a brace of JSON is written twice.
"""

from dataclasses import dataclass
from typing import ClassVar

from patchlight.controller.circuits.dialects import AnyPolatisDialect, Dialect, Pattern, Template


@dataclass(frozen=True)
class HttpDialect(Dialect):
    """What every exchange takes.

    ``verify`` is how the device's certificate is checked before the password is sent:
    ``"first-use"``, ``"pinned"``, ``"ca"`` or ``"off"``, see ``trust``.
    ``old_tls`` allows what today's libraries call unsafe, for old units. ``keep_connection``
    saves a TLS handshake for each exchange; an exchange on a connection of its own cannot
    take another's answer for its own, nor find that the device has just hung up.
    ``error_words`` is searched in the body of a refusal. Without ``tls`` it is plain HTTP, and no
    password is ever sent.
    """

    base: str = ""
    tls: bool = True
    media_type: str = "application/json"
    verify: str = "first-use"
    old_tls: bool = False
    keep_connection: bool = False
    error_words: Pattern = r'"(?:error-)?message"\s*:\s*(?P<words>"(?:[^"\\]|\\.)*")'


@dataclass(frozen=True)
class CalientRestDialect(HttpDialect):
    """What a Calient takes.

    ``{src}`` and ``{dst}`` are ports like ``1.1.1``, ``{conn}`` is a connection's id,
    ``{group}`` and ``{connname}`` what the device holds of it. ``deactivate``, if there is
    one, goes before ``delete``. The ``…_key`` entries are keys of the answers. ``up``,
    ``failed`` and ``parked`` match a half's ``AS,OS,OC``. At or below ``dark_dbm`` it is dark.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"src", "dst", "conn", "group", "connname"})

    base: str = "/rest"
    circuits: str = "/crossconnects/?id=list"
    add: str = "/crossconnects/?id=add"
    add_bulk: str = "/crossconnects/?id=badd"
    body: Template = (
        '{{"in":"{src}","out":"{dst}","group":"{group}","conn":"{conn}",'
        '"dir":"uni","band":"CBAND"}}'
    )
    activate: Template = "/crossconnects/?id=activate&conn={conn}&group={group}&name={connname}"
    deactivate: Template = ""
    delete: Template = "/crossconnects/?id=delete&conn={conn}&group={group}&name={connname}"
    ports: str = "/ports/?id=summary"
    hardware: str = "/node/?id=summary&detail=SYSCFG"
    software: str = "/node/?id=summary&detail=SOFTWARE"
    vendor: str = "Calient"
    group: str = "SYSTEM"
    bulk: bool = True
    bulk_limit: int = 64
    one_way_id: Template = "{src}>{dst}"
    two_way_id: Template = "{src}-{dst}"
    first_half_key: str = "half1"
    second_half_key: str = "half2"
    half_conn_key: str = "conn"
    half_conn: Pattern = r"(?P<src>[\d.]+)(?:/\d+)?>(?P<dst>[\d.]+)(?:/\d+)?"
    state_keys: str = "as,os,oc"
    in_power_key: str = "inp"
    out_power_key: str = "outp"
    alarm_key: str = "alarm"
    name_key: str = "name"
    group_key: str = "group"
    port_key: str = "port"
    port_power_key: str = "power"
    model_key: str = "partnumber"
    serial_key: str = "serialnumber"
    version_key: str = "version"
    up: Pattern = r"IS,IS,OK"
    failed: Pattern = r"[^,]*,[^,]*,(FAIL|NOHW)"
    parked: Pattern = r"UMA,.*"
    no_alarm: Pattern = r"|CL|NONE"
    critical: Pattern = r"CR.*"
    major: Pattern = r"MJ.*"
    dark_dbm: float = -90.0


@dataclass(frozen=True)
class PolatisRestconfDialect(HttpDialect, AnyPolatisDialect):
    """What a Polatis takes.

    ``{ingress}`` and ``{egress}`` are the device's port numbers, ``{pairs}`` is a list of
    ``pair``. The ``…_key`` entries are keys of the answers. ``size`` is searched in the model.
    ``guard`` sends the map's ETag along with a change, so that the device does nothing if the
    map is no longer the one that was read.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"ingress", "egress", "pairs"})

    base: str = "/api"
    media_type: str = "application/yang-data+json"
    circuits: str = "/data/cross-connects/pair"
    pair: Template = '{{"ingress":{ingress},"egress":{egress}}}'
    body: Template = '{{"pair":[{pairs}]}}'
    delete: Template = "/data/cross-connects/pair={ingress}"
    ports: str = "/data/port-config/port"
    power: str = "/data/opm-power/port"
    identity: str = "/data/product-information"
    system_alarms: str = "/data/system-alarms/alarm"
    guard: bool = True
    ingress_key: str = "ingress"
    egress_key: str = "egress"
    port_key: str = "port-id"
    status_key: str = "status"
    power_key: str = "power"
    vendor_key: str = "manufacturer"
    model_key: str = "model-name"
    serial_key: str = "serial-number"
    version_key: str = "software-version"
    size: Pattern = r"\b(?P<ins>\d{1,9})x(?P<outs>\d{1,9})\b"
    enabled: str = "ENABLED"
    disabled: str = "DISABLED"
    absent: Pattern = r"UNSUPPORTED"
    critical: Pattern = r"(?i)critical"
    major: Pattern = r"(?i)major"


@dataclass(frozen=True)
class SonicOcsDialect(HttpDialect):
    """What a switch that runs SONiC takes, by its models ``sonic-ocs`` and ``sonic-ocs-states``.

    ``{inp}`` and ``{out}`` are port numbers, ``{id}`` is a cross-connect's id, ``{rows}`` a list
    of ``row``. ``up``, ``failed`` and ``parked`` match what ``state_keys`` hold of a cross-connect;
    all else is on its way. An earlier revision of the model has one status for a cross-connect::

        states = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT_TABLE"
        state_keys = "status"
        up = "enabled"
        port_states = "/data/sonic-ocs:sonic-ocs/OCS_PORT_TABLE"
        port_state_key = "oper_status"
        losses = "/data/sonic-ocs:sonic-ocs/OCS_FACTORY_INSERTION_LOSS_TABLE"
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"inp", "out", "id", "rows"})

    base: str = "/restconf"
    media_type: str = "application/yang-data+json"
    circuits: str = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT"
    ports: str = "/data/sonic-ocs:sonic-ocs/OCS_PORT"
    states: str = "/data/sonic-ocs-states:sonic-ocs-states/OCS_CROSS_CONNECT"
    port_states: str = "/data/sonic-ocs-states:sonic-ocs-states/OCS_PORT"
    losses: str = "/data/sonic-ocs-states:sonic-ocs-states/OCS_FACTORY_INSERTION_LOSS"
    identity: str = "/data/sonic-device_metadata:sonic-device_metadata/DEVICE_METADATA/localhost"
    row: Template = '{{"cross_connect_id":"{id}","a_side":"{inp}A","b_side":"{out}B"}}'
    body: Template = '{{"sonic-ocs:OCS_CROSS_CONNECT":{{"OCS_CROSS_CONNECT_LIST":[{rows}]}}}}'
    delete: Template = "/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT/OCS_CROSS_CONNECT_LIST={id}"
    circuit_id: Template = "{inp}A-{out}B"
    circuit: Pattern = r"(?P<inp>\d{1,9})A-(?P<out>\d{1,9})B"
    port: Pattern = r"(?P<number>\d{1,9})(?P<side>[AB])"
    id_key: str = "cross_connect_id"
    state_keys: str = "a_side_status,b_side_status"
    port_key: str = "simplex_port_id"
    override_key: str = "config_status"
    port_state_key: str = "status"
    loss_key: str = "loss_dB"
    vendor: str = "SONiC"
    model_key: str = "hwsku"
    name_key: str = "hostname"
    up: Pattern = "tuned,tuned"
    failed: Pattern = ".*failed.*"
    parked: Pattern = "invalid"
    normal: Pattern = "normal|"
    list_limit: int = 512


CALIENT = CalientRestDialect()
POLATIS = PolatisRestconfDialect()
SONIC = SonicOcsDialect()


@dataclass(frozen=True)
class WaveShaperDialect(HttpDialect):
    """What a WaveShaper takes. The ``…_key`` entries are keys of its answers."""

    tls: bool = False
    error_words: Pattern = r'"rctext"\s*:\s*(?P<words>"(?:[^"\\]|\\.)*")'
    about: str = "/waveshaper/devinfo"
    profile: str = "/waveshaper/getprofile"
    load: str = "/waveshaper/loadprofile"
    vendor: str = "Finisar"
    model_key: str = "model"
    serial_key: str = "sno"
    software_key: str = "ver"
    port_count_key: str = "portcount"
    result_key: str = "rc"
    words_key: str = "rctext"


WAVESHAPER = WaveShaperDialect()
