"""Reads InfraGraph infrastructures (https://github.com/Keysight/infragraph) as plants, and writes
labs as such."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Annotated, Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.generate.plant import (
    Cable,
    Plant,
    PlantDevice,
    PlantPort,
    wrong_shape,
)
from patchlight.testbed.lab.model import Endpoint, Lab, Server
from patchlight.testbed.lab.wiring import LightPath, Links
from patchlight.testbed.labfile.values import MODEL

_PART = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
_MOST_PORTS = 200_000
_Count = Annotated[int, Field(ge=0, le=_MOST_PORTS)]
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_RATE_UNITS = {
    "gigabits_per_second": 1e9,
    "gigabytes_per_second": 8e9,
}
_PER_SECOND = {"ms": 1e3, "us": 1e6, "ns": 1e9}
_INSIDE = "what is inside servers (CPUs, memories, PCIe, NVLink)"


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Custom(_Form):
    type: str = ""


class _Component(_Form):
    name: str
    count: _Count
    choice: str
    custom: _Custom | None = None
    description: str = ""

    @property
    def kind(self) -> str:
        if self.choice == "custom" and self.custom is not None:
            return self.custom.type
        return self.choice


class _Inside(_Form):
    component: str
    device: str | None = None


class _InnerEdge(_Form):
    ep1: _Inside
    ep2: _Inside
    link: str = ""
    scheme: str = ""


class _DeviceForm(_Form):
    name: str
    components: list[_Component] = []
    edges: list[_InnerEdge] = []


class _Instance(_Form):
    name: str
    device: str
    count: _Count


class _Bandwidth(_Form):
    gigabits_per_second: _Rate | None = None
    gigabytes_per_second: _Rate | None = None
    gigatransfers_per_second: float | None = None


class _Latency(_Form):
    ms: _Time | None = None
    us: _Time | None = None
    ns: _Time | None = None


class _Physical(_Form):
    bandwidth: _Bandwidth | None = None
    latency: _Latency | None = None


class _Link(_Form):
    name: str
    physical: _Physical | None = None


class _End(_Form):
    instance: str
    component: str


class _Edge(_Form):
    ep1: _End
    ep2: _End
    link: str
    scheme: str = ""


class _Infrastructure(_Form):
    name: str = "lab"
    devices: list[_DeviceForm]
    instances: list[_Instance]
    links: list[_Link] = []
    edges: list[_Edge]


class _Attribute(_Form):
    attribute: str
    value: str


class _Note(_Form):
    name: str
    attributes: list[_Attribute] = []


class _Annotations(_Form):
    nodes: list[_Note] = []


class _File(_Form):
    infrastructure: _Infrastructure
    annotations: _Annotations = _Annotations()


class _Leaf(NamedTuple):
    """A component of a device, or of a device in it: ``nic.0``, ``cx5.1.port.0``."""

    path: str
    kind: str
    description: str


def read_infragraph(
    document: Mapping[str, Any],
    what: str,
    ocs: Mapping[str, str],
) -> Plant:
    """The plant of an infrastructure, alone or with annotations beside it.

    ``ocs`` names instances or devices that are OCSs, each with its driver. A device whose
    component has the custom type ``ocs`` is one, too. Raises ``BadInput`` for all that the
    package itself lets pass: unknown links and instances, indices out of range, lists of unequal
    length, and ports with two cables.
    """
    alone = "infrastructure" not in document
    try:
        file = _File.model_validate(
            {"infrastructure": document} if alone else document
        )
    except ValidationError as error:
        raise wrong_shape(what, error) from error
    return _Reader(file, what, ocs).plant()


@dataclass
class _Reader:
    file: _File
    what: str
    ocs: Mapping[str, str]

    def plant(self) -> Plant:
        self._check_names()
        cables = tuple(self._cables())
        used: dict[str, dict[str, None]] = {}
        for cable in cables:
            for end in (cable.a, cable.b):
                used.setdefault(end.device, {})[end.name] = None
        devices = [
            self._device(instance, number, used)
            for instance in self._graph.instances
            for number in range(instance.count)
        ]
        first = {
            name: min(ranks.values()) for name, ranks in self._ranks.items()
        }
        devices.sort(key=lambda device: first.get(device.name, 1 << 30))
        spare = sum(
            leaf.kind == "nic"
            and leaf.path not in used.get(self._name(instance.name, n), ())
            for instance in self._graph.instances
            for n in range(instance.count)
            for leaf in self._leaves[instance.device]
        )
        alone = [d.name for d in devices if d.kind == "server" and not d.ports]
        devices = [d for d in devices if d.kind != "server" or d.ports]
        left_out = [
            _INSIDE,
            *(f"{name}, which has no cable" for name in alone),
        ]
        if spare:
            left_out.append(f"{spare} NICs without a cable")
        return Plant(self._graph.name, tuple(devices), cables, tuple(left_out))

    @property
    def _graph(self) -> _Infrastructure:
        return self.file.infrastructure

    @cached_property
    def _devices(self) -> dict[str, _DeviceForm]:
        return {device.name: device for device in self._graph.devices}

    @cached_property
    def _instances(self) -> dict[str, _Instance]:
        return {instance.name: instance for instance in self._graph.instances}

    def _wrong(self, message: str) -> BadInput:
        return BadInput(f"{self.what}: {message}")

    def _check_names(self) -> None:
        for kind, names in (
            ("devices", [d.name for d in self._graph.devices]),
            ("instances", [i.name for i in self._graph.instances]),
            ("links", [link.name for link in self._graph.links]),
        ):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise self._wrong(f"two {kind} are named {min(twice)!r}")
        for instance in self._graph.instances:
            if instance.device not in self._devices:
                raise self._wrong(
                    f"instance {instance.name}: {instance.device!r} is not a device: "
                    f"{nearest(instance.device, self._devices)}"
                )
        if (
            unknown := set(self.ocs)
            - set(self._instances)
            - set(self._devices)
        ):
            name = min(unknown)
            raise BadInput(
                f"--ocs: {self.what} has no instance or device {name!r}: "
                f"{nearest(name, [*self._instances, *self._devices])}"
            )

    @cached_property
    def _leaves(self) -> dict[str, list[_Leaf]]:
        leaves = {
            name: list(islice(self._inside(name, ()), _MOST_PORTS + 1))
            for name in self._devices
        }
        parts = sum(
            instance.count * len(leaves[instance.device])
            for instance in self._graph.instances
        )
        if parts > _MOST_PORTS * 10:
            raise self._wrong(
                f"{parts:,} components: expected at most {_MOST_PORTS * 10:,}"
            )
        return leaves

    def _inside(self, device: str, above: tuple[str, ...]) -> Iterator[_Leaf]:
        if device in above:
            circle = " in ".join([device, *reversed(above)])
            raise self._wrong(f"a device contains itself: {circle}")
        for component in self._devices[device].components:
            for number in range(component.count):
                path = f"{component.name}.{number}"
                if component.choice != "device":
                    yield _Leaf(path, component.kind, component.description)
                    continue
                if component.name not in self._devices:
                    raise self._wrong(
                        f"device {device}: its component {component.name!r} is not a device: "
                        f"{nearest(component.name, self._devices)}"
                    )
                for leaf in self._inside(component.name, (*above, device)):
                    yield leaf._replace(path=f"{path}.{leaf.path}")

    def _device(
        self,
        instance: _Instance,
        number: int,
        used: Mapping[str, Mapping[str, None]],
    ) -> PlantDevice:
        name = self._name(instance.name, number)
        leaves = self._leaves[instance.device]
        kinds = {leaf.path: leaf.kind for leaf in leaves}
        cabled = used.get(name, {})
        ports = [leaf.path for leaf in leaves if leaf.kind == "port"]
        ports += [path for path in cabled if kinds[path] != "port"]
        marked = self._notes.get(name, {})
        driver = (
            self.ocs.get(instance.name)
            or self.ocs.get(instance.device)
            or marked.get("patchlight.driver")
        )
        if driver or "ocs" in kinds.values():
            return PlantDevice(
                name,
                "ocs",
                tuple(ports),
                driver=driver or PlantDevice.driver,
                address=marked.get("patchlight.address", ""),
                circuits=tuple(
                    text.strip()
                    for text in marked.get("circuits", "").split(",")
                    if text.strip()
                ),
            )
        gpus = [leaf.path for leaf in leaves if leaf.kind == "xpu"]
        if not gpus:
            return PlantDevice(name, "switch", tuple(ports))
        ranks = self._ranks.get(name, {})
        gpus.sort(key=lambda path: ranks.get(path, 0))
        nics = [leaf.path for leaf in leaves if leaf.path in cabled]
        models = {leaf.description for leaf in leaves if leaf.kind == "xpu"}
        model = models.pop() if len(models) == 1 else ""
        return PlantDevice(
            name,
            "server",
            tuple(nics),
            gpus=len(gpus),
            gpu_model=model if _fits(model) else PlantDevice.gpu_model,
            gpu_of=self._nearest_gpus(instance.device, nics, gpus),
        )

    @cached_property
    def _notes(self) -> dict[str, dict[str, str]]:
        """Attributes of nodes, by the instance that they belong to: ``host-0``."""
        found: dict[str, dict[str, str]] = {}
        for note in self.file.annotations.nodes:
            owner, _ = self._node(note.name)
            for attribute in note.attributes:
                found.setdefault(owner, {})[attribute.attribute] = (
                    attribute.value
                )
        return found

    @cached_property
    def _ranks(self) -> dict[str, dict[str, int]]:
        """The ranks of each device's GPUs, by path."""
        found: dict[str, dict[str, int]] = {}
        for note in self.file.annotations.nodes:
            owner, path = self._node(note.name)
            for attribute in note.attributes:
                if attribute.attribute != "rank":
                    continue
                if not attribute.value.isdecimal():
                    raise self._wrong(
                        f"{note.name}: {attribute.value!r} is not a rank: expected 0, 1, …"
                    )
                found.setdefault(owner, {})[path] = int(attribute.value)
        return found

    def _node(self, text: str) -> tuple[str, str]:
        """``host.0.xpu.1`` → the name of its device, and the path in it."""
        name, _, rest = text.partition(".")
        number, _, path = rest.partition(".")
        if name not in self._instances or not number.isdecimal():
            raise self._wrong(
                f"annotation of {text!r}: expected a node like "
                f"'{next(iter(self._instances), 'host')}.0.xpu.1'"
            )
        return self._name(name, int(number)), path

    def _name(self, instance: str, number: int) -> str:
        """An instance's name in the lab: a number follows if there are several."""
        several = self._instances[instance].count > 1
        return f"{instance}-{number}" if several else instance

    def _nearest_gpus(
        self,
        device: str,
        nics: Sequence[str],
        gpus: Sequence[str],
    ) -> dict[str, int]:
        """For each NIC the nearest GPU that has none yet; of equally near ones the first."""
        steps = self._steps(device)
        free = dict(enumerate(gpus))
        found: dict[str, int] = {}
        for nic in nics:
            far = _distances(steps, nic)
            # Without edges inside the device, NICs and GPUs go in order.
            reached = [n for n in free if not steps or free[n] in far]
            if reached:
                best = min(reached, key=lambda n: (far.get(free[n], 0), n))
                found[nic] = best
                del free[best]
        return found

    def _steps(self, device: str) -> dict[str, set[str]]:
        """Neighbours inside a device, nested devices included."""
        steps: dict[str, set[str]] = {}

        def add(name: str, before: str) -> None:
            form = self._devices[name]
            for edge in form.edges:
                ends = [
                    self._paths(
                        name,
                        f"{end.device}.{end.component}"
                        if end.device
                        else end.component,
                        f"device {name}",
                    )
                    for end in (edge.ep1, edge.ep2)
                ]
                for a, b in _paired(edge.scheme, *ends):
                    steps.setdefault(before + a, set()).add(before + b)
                    steps.setdefault(before + b, set()).add(before + a)
            for component in form.components:
                if component.choice == "device":
                    for number in range(component.count):
                        add(
                            component.name,
                            f"{before}{component.name}.{number}.",
                        )

        add(device, "")
        return steps

    def _paths(
        self,
        device: str,
        text: str,
        where: str,
    ) -> list[str]:
        """``cx5[0:2].port[1]`` → ``cx5.0.port.1``, ``cx5.1.port.1``."""
        paths = [""]
        inside: str | None = device
        for step in text.split("."):
            if inside is None:
                raise self._wrong(
                    f"{where}: {text!r} continues below a component that is not a device"
                )
            part = _PART.fullmatch(step)
            known = {c.name: c for c in self._devices[inside].components}
            if part is None or part[1] not in known:
                name = step if part is None else part[1]
                raise self._wrong(
                    f"{where}: device {inside} has no component {name!r}: "
                    f"{nearest(name, known)}"
                )
            component = known[part[1]]
            numbers = self._indices(part[2], component.count, text, where)
            paths = [
                f"{path}{'.' if path else ''}{component.name}.{number}"
                for path, number in product(paths, numbers)
            ]
            if len(paths) > _MOST_PORTS:
                raise self._wrong(
                    f"{where}: {text!r} is more than {_MOST_PORTS} ports"
                )
            inside = component.name if component.choice == "device" else None
            if inside is not None and inside not in self._devices:
                raise self._wrong(
                    f"{where}: {inside!r} is not a device: {nearest(inside, self._devices)}"
                )
        if inside is not None:
            raise self._wrong(
                f"{where}: {text!r} is a device: expected a component in it, like "
                f"{text + '.port[0]'!r}"
            )
        return paths

    def _indices(
        self,
        text: str | None,
        count: int,
        whole: str,
        where: str,
    ) -> list[int]:
        """The numbers that a Python slice or index selects."""
        try:
            bounds = [
                int(part) if part.strip() else None
                for part in (text or ":").split(":")
            ]
            if len(bounds) == 1 and bounds[0] is not None:
                return [range(count)[bounds[0]]]
            if len(bounds) > 3:
                raise ValueError
            numbers = list(range(*slice(*bounds).indices(count)))
        except IndexError:
            raise self._wrong(
                f"{where}: {whole!r} is out of range: there are {count}"
            ) from None
        except ValueError:
            raise self._wrong(
                f"{where}: {whole!r} is not an index or a slice like [0:4]"
            ) from None
        stop = bounds[1] if len(bounds) > 1 else None
        if not numbers or (stop is not None and stop > count):
            raise self._wrong(
                f"{where}: {whole!r} is out of range: there are {count}"
            )
        return numbers

    def _ports_of(self, end: _End, where: str) -> list[PlantPort]:
        part = _PART.fullmatch(end.instance)
        name = end.instance if part is None else part[1]
        if name not in self._instances or part is None:
            raise self._wrong(
                f"{where}: {name!r} is not an instance: {nearest(name, self._instances)}"
            )
        instance = self._instances[name]
        numbers = self._indices(part[2], instance.count, end.instance, where)
        paths = self._paths(instance.device, end.component, where)
        return [
            PlantPort(self._name(name, number), path)
            for number, path in product(numbers, paths)
        ]

    def _cables(self) -> Iterator[Cable]:
        links = {link.name: link for link in self._graph.links}
        for number, edge in enumerate(self._graph.edges):
            where = f"edges[{number}]"
            if edge.link not in links:
                raise self._wrong(
                    f"{where}: {edge.link!r} is not a link: {nearest(edge.link, links)}"
                )
            if edge.scheme not in ("one2one", "many2many"):
                raise self._wrong(
                    f"{where}: {edge.scheme or 'no'} scheme: expected one2one or many2many"
                )
            ends = [self._ports_of(end, where) for end in (edge.ep1, edge.ep2)]
            if edge.scheme == "one2one" and len(ends[0]) != len(ends[1]):
                raise self._wrong(
                    f"{where}: {len(ends[0])} ports on one side and {len(ends[1])} on the "
                    "other: one2one needs the same number on both, with slices like port[0:2]"
                )
            rate_bps, delay_s = self._speed(links[edge.link])
            for a, b in _paired(edge.scheme, *ends):
                yield Cable(a, b, rate_bps, delay_s)

    def _speed(self, link: _Link) -> tuple[int | None, float]:
        physical = link.physical or _Physical()
        bandwidth = physical.bandwidth or _Bandwidth()
        latency = physical.latency or _Latency()
        if bandwidth.gigatransfers_per_second is not None:
            raise self._wrong(
                f"link {link.name}: GT/s is not the rate of a cable: "
                "expected gigabits_per_second or gigabytes_per_second"
            )
        rates = [
            value * factor
            for unit, factor in _RATE_UNITS.items()
            if (value := getattr(bandwidth, unit)) is not None
        ]
        delays = [
            value / per_second
            for unit, per_second in _PER_SECOND.items()
            if (value := getattr(latency, unit)) is not None
        ]
        return (round(rates[0]) if rates else None), sum(delays)


def _fits(model: str) -> bool:
    try:
        MODEL.take(model)
    except BadInput:
        return False
    return True


T = TypeVar("T")


def _paired(
    scheme: str, a: Sequence[T], b: Sequence[T]
) -> Iterable[tuple[T, T]]:
    if scheme == "many2many":
        return ((x, y) for x, y in product(a, b) if x != y)
    return zip(a, b, strict=False)


def _distances(
    steps: Mapping[str, Iterable[str]], start: str
) -> dict[str, int]:
    far = {start: 0}
    edge = [start]
    while edge:
        beyond = []
        for node in edge:
            for other in steps.get(node, ()):
                if other not in far:
                    far[other] = far[node] + 1
                    beyond.append(other)
        edge = beyond
    return far


def infragraph_of(lab: Lab, links: Links | None = None) -> str:
    """A lab as an InfraGraph infrastructure, in YAML.

    All devices and fibres: an OCS is a device without edges inside, which no path crosses. With
    ``links``, those present links in place of the fibres, without OCSs: what simulators need.
    """
    forms = {server.name: _server_form(server) for server in lab.servers}
    forms |= {
        switch.name: _switch_form(switch.ports, "switch")
        for switch in lab.packet_switches
    }
    if links is None:
        if lab.sorting:
            raise BadInput(
                f"lab {lab.name}: InfraGraph has no wavelengths",
                hint="write the present links: --format infragraph-links",
            )
        forms |= {
            switch.name: _switch_form(switch.ports, "ocs")
            for switch in lab.circuit_switches
        }
        cables = [
            (fibre.a, fibre.b, fibre.rate_bps, fibre.delay_s)
            for fibre in lab.fibres
        ]
    else:
        cables = [
            (a, b, links.paths[a].rate_bps, _delay_s(lab, links.paths[a]))
            for a, b in links.pairs()
        ]
    places = _places(forms)
    devices: dict[str, dict[str, Any]] = {}
    instances: dict[str, dict[str, Any]] = {}
    for name, (instance, _) in places.items():
        form = forms[name]
        device = next(
            (d for d, known in devices.items() if known == form), instance
        )
        devices[device] = form
        known = instances.setdefault(
            instance, {"name": instance, "device": device, "count": 0}
        )
        known["count"] += 1
    kinds: dict[str, dict[str, Any]] = {}
    edges = []
    for a, b, rate_bps, delay_s in cables:
        link = _link(rate_bps, delay_s)
        kinds[link["name"]] = link
        ends = [_end(end, places, lab) for end in (a, b)]
        edges.append(
            {
                "ep1": ends[0],
                "ep2": ends[1],
                "scheme": "one2one",
                "link": link["name"],
            }
        )
    document = {
        "name": lab.name,
        "devices": [{"name": name, **form} for name, form in devices.items()],
        "instances": list(instances.values()),
        "links": list(kinds.values()),
        "edges": edges,
    }
    return yaml.safe_dump(document, sort_keys=False)


def _delay_s(lab: Lab, path: LightPath) -> float:
    """The delay of all fibres on a path, in seconds."""
    begins = [path.source]
    begins += [Endpoint(name, str(cross.out)) for name, cross in path.through]
    return sum(lab.fibre_ends[begin][1].delay_s for begin in begins)


def _places(forms: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """For each device its instance and number: ``host-0``, ``host-1`` are ``host`` 0 and 1."""
    groups: dict[str, list[str]] = {}
    for name in forms:
        stem, _, number = name.rpartition("-")
        if stem and number == str(len(groups.get(stem, ()))):
            groups.setdefault(stem, []).append(name)
    places = {}
    for name in forms:
        stem = name.rpartition("-")[0]
        members = groups.get(stem, [])
        alike = all(forms[m] == forms[members[0]] for m in members)
        if (
            name in members
            and len(members) > 1
            and alike
            and stem not in forms
        ):
            places[name] = (stem, members.index(name))
        else:
            places[name] = (name, 0)
    return places


def _parts_of(names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """For each NIC its component and number: ``nic0``, ``nic1`` are ``nic`` 0 and 1."""
    counts: dict[str, int] = {}
    parts = {}
    for name in names:
        match = re.fullmatch(r"(.*?)-?(\d+)", name)
        stem = match[1] if match and match[1] else ""
        if match and stem and int(match[2]) == counts.get(stem, 0):
            parts[name] = (stem, int(match[2]))
            counts[stem] = counts.get(stem, 0) + 1
        else:
            parts[name] = (name, 0)
            counts[name] = 1
    return parts


def _server_form(server: Server) -> dict[str, Any]:
    parts = _parts_of(nic.name for nic in server.nics)
    counts = Counter(component for component, _ in parts.values())
    components: list[dict[str, Any]] = []
    models = {gpu.model for gpu in server.gpus}
    if server.gpus:
        components.append(
            {
                "name": "xpu",
                "description": models.pop() if len(models) == 1 else "GPU",
                "count": len(server.gpus),
                "choice": "xpu",
            }
        )
    components += [
        {"name": name, "count": count, "choice": "nic"}
        for name, count in counts.items()
    ]
    number = {gpu.name: n for n, gpu in enumerate(server.gpus)}
    edges = [
        {
            "ep1": {"component": f"xpu[{number[nic.gpu]}]"},
            "ep2": {"component": "{}[{}]".format(*parts[nic.name])},
            "scheme": "one2one",
            "link": "pcie",
        }
        for nic in server.nics
        if nic.gpu is not None
    ]
    return {
        "components": components,
        "links": [{"name": "pcie"}] if edges else [],
        "edges": edges,
    }


def _switch_form(ports: int, kind: str) -> dict[str, Any]:
    chip: dict[str, Any] = {"name": "asic", "count": 1, "choice": "switch"}
    edges: list[dict[str, Any]] = [
        {
            "ep1": {"component": "asic"},
            "ep2": {"component": "port"},
            "scheme": "many2many",
            "link": "inside",
        }
    ]
    if kind == "ocs":
        chip = {
            "name": "core",
            "count": 1,
            "choice": "custom",
            "custom": {"type": "ocs"},
        }
        edges = []
    return {
        "components": [
            chip,
            {"name": "port", "count": ports, "choice": "port"},
        ],
        "links": [{"name": "inside"}] if edges else [],
        "edges": edges,
    }


def _end(
    end: Endpoint,
    places: Mapping[str, tuple[str, int]],
    lab: Lab,
) -> dict[str, str]:
    instance, number = places[end.device]
    server = next((s for s in lab.servers if s.name == end.device), None)
    if server is None:
        component = f"port[{int(end.port) - 1}]"
    else:
        parts = _parts_of(nic.name for nic in server.nics)
        component = "{}[{}]".format(*parts[end.port])
    return {"instance": f"{instance}[{number}]", "component": component}


def _link(rate_bps: float | None, delay_s: float) -> dict[str, Any]:
    """A kind of link, named by its rate and its delay."""
    name = "link"
    physical: dict[str, Any] = {}
    if rate_bps is not None:
        gigabits = rate_bps / 1e9
        physical["bandwidth"] = {
            "choice": "gigabits_per_second",
            "gigabits_per_second": int(gigabits)
            if gigabits.is_integer()
            else gigabits,
        }
        name += f"-{gigabits:g}G".replace(".", "_")
    if delay_s:
        physical["latency"] = {"choice": "ns", "ns": round(delay_s * 1e9)}
        name += f"-{delay_s * 1e9:.0f}ns"
    return {"name": name, **({"physical": physical} if physical else {})}
