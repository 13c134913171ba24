"""A ``/sys`` in the kernel's layout: NICs with virtual functions and RDMA devices."""

from pathlib import Path


class SysfsTree:
    """What ``root`` holds is made by and by, as drivers would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._pci = 0

    def nic(self, name: str, dev_port: int = 0) -> Path:
        """A NIC on a PCI device of its own; that device."""
        self._pci += 1
        device = self.root / f"devices/pci0000:00/0000:00:{self._pci:02x}.0"
        self._netdev(name, device, dev_port)
        return device

    def _netdev(self, name: str, device: Path, dev_port: int = 0) -> None:
        folder = device / "net" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(device)
        (folder / "dev_port").write_text(f"{dev_port}\n")
        self._link(f"class/net/{name}", folder)

    def virtual_nic(self, name: str) -> None:
        """A NIC without a device: a veth, a bridge."""
        folder = self.root / "devices/virtual/net" / name
        folder.mkdir(parents=True)
        self._link(f"class/net/{name}", folder)

    def function(self, port: Path, number: int, name: str | None) -> Path:
        """A virtual function of a port; ``None``: its interface is in another namespace."""
        device = port.parent / f"{port.name}-vf{number}"
        device.mkdir()
        if name is not None:
            self._netdev(name, device)
        (port / f"virtfn{number}").symlink_to(device)
        return device

    def rdma(
        self, device: Path, name: str, uverbs: int, ports: int = 1
    ) -> None:
        """An RDMA device on a PCI device."""
        folder = device / "infiniband" / name
        for port in range(1, ports + 1):
            (folder / "ports" / str(port)).mkdir(parents=True)
            (folder / "ports" / str(port) / "state").write_text("4: ACTIVE\n")
        (folder / "device").symlink_to(device)
        self._link(f"class/infiniband/{name}", folder)
        verbs = device / "infiniband_verbs" / f"uverbs{uverbs}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"{name}\n")
        self._link(f"class/infiniband_verbs/uverbs{uverbs}", verbs)

    def gid(
        self, device: str, index: int, gid: str, kind: str, interface: str
    ) -> None:
        """An entry of the GID table of a device's first port."""
        port = self.root / f"class/infiniband/{device}/ports/1"
        rows = (
            ("gids", gid),
            ("gid_attrs/types", kind),
            ("gid_attrs/ndevs", interface),
        )
        for folder, value in rows:
            (port / folder).mkdir(parents=True, exist_ok=True)
            (port / folder / str(index)).write_text(value + "\n")

    def _link(self, path: str, to: Path) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(to)
