"""Servers that are virtual machines: QEMU with Debian's kernel, systemd and soft RoCE.

A NIC of such a server is a tap in the server's namespace. Every frame passes between it and the
veth of that name, which keeps the NIC's rate and leads to the lab.
"""

import fcntl
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.plan import namespace_name
from patchlight.emulation.fabric.processes import LabService
from patchlight.emulation.servers.server import (
    NoRehearsalServers,
    interface_of,
    service_name,
)
from patchlight.testbed.lab.model import Server, default_mac
from patchlight.testbed.lab.packet_sizes import USUAL_MTU
from patchlight.testbed.lab.rules import WRITABLE
from patchlight.testbed.linux import namespaces, processes
from patchlight.testbed.linux.netlink import Netlink

_QEMU = "qemu-system-x86_64"
# With a Docker engine, for containers with PyTorch, twice as much.
_MEMORY_MB = 512
# What a QEMU process takes beside its guest's memory, at most.
_BESIDE_MB = 188
_TRIAL_S = 20.0
# With a load of 28 on two cores two took 218 s.
_BOOT_S = 600.0
# Of one processor: with two, four machines were up in 13 s.
_UP_S = 6.5
_MUCH_SLOWER = 1.5
"""The slowdown, compared with an idle machine, from which a user is warned."""
_ASK_AGAIN_S = 1.0
_TUNSETIFF = 0x400454CA
_TUNSETPERSIST = 0x400454CB
_IFF_TAP = 2
_IFF_NO_PI = 0x1000
_FIRST_TABLE = 1000

_LINK = """\
[Match]
PermanentMACAddress={mac}

[Link]
Name={name}
"""
_NETWORK = """\
[Match]
Name={name}

[Link]
RequiredForOnline={online}

[Network]
Address={address}
LinkLocalAddressing=no
IPv6AcceptRA=no
"""
# Several NICs in one subnet: what comes from one's address leaves by it, the rest by the first.
_OWN_TABLE = """\
[Route]
Destination={network}
Scope=link
PreferredSource={ip}
Table={table}

[RoutingPolicyRule]
From={ip}
Table={table}
Priority=999

[RoutingPolicyRule]
To={network}
Table={table}
Priority={table}
"""
_SEVERAL_NICS = """\
net.ipv4.conf.all.arp_ignore=1
net.ipv4.conf.all.arp_announce=2
net.ipv4.conf.all.rp_filter=0
net.ipv4.conf.default.rp_filter=0
"""
_TEMPLATE = Path(__file__).with_name("template.sh")
# Its first start goes on where the template stopped, every later one boots.
_START = """\
cd "$0"
if mv memory restored 2>/dev/null; then set -- "$@" -incoming "exec:cat restored"; fi
exec "$@"
"""
_MOUNT_LAYER = (
    "/dev/vdc /usr/lib/patchlight ext4 ro,nofail,X-mount.mkdir 0 0\n"
)
# The rule runs when the NIC has its name, at boot and when a worker gives it back.
_SOFT_ROCE = (
    'ACTION=="add", SUBSYSTEM=="net", ENV{{ID_NET_LINK_FILE}}=="*/10-{name}.link", '
    'RUN+="/usr/bin/rdma link add rxe_{name} type rxe netdev {name}"\n'
)
# A folder of this machine, as servers have them of a file server.
_FOLDER = "folder{} {} 9p {},cache=mmap,trans=virtio,msize=524288,nofail,X-mount.mkdir 0 0\n"


def check_machine(servers: int, *, docker: bool = False) -> None:
    """``NoRehearsalServers`` where QEMU is missing, or memory for so many servers."""
    guests_mb = servers * _MEMORY_MB * (1 + docker)
    for program in (_QEMU, "qemu-img"):
        if shutil.which(program) is None:
            raise NoRehearsalServers(
                f"starting servers as virtual machines: {program} is not installed",
                hint="Install it with: sudo apt-get install qemu-system-x86 qemu-utils",
            )
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise NoRehearsalServers(
            f"making NICs of virtual machines: /dev/net/tun: {error.strerror}",
            hint="Load the kernel's module: modprobe tun. A container needs the device passed "
            "in; or use --server-kind ssh.",
        ) from error
    if guests_mb > (free_mb := _free_mb()):
        raise NoRehearsalServers(
            f"{servers} virtual machines need {guests_mb:,} MB of memory, but only {free_mb:,} "
            f"MB are free",
            hint="Use a lab with fewer servers, or --server-kind ssh.",
        )


def _free_mb() -> int:
    rows = (
        line.split() for line in Path("/proc/meminfo").read_text().splitlines()
    )
    kb = {row[0]: int(row[1]) for row in rows}
    return (kb["MemAvailable:"] + kb["SwapFree:"]) // 1024


def what_fits(
    servers: int,
    processors: int,
    others: float,
    free_mb: int,
    *,
    docker: bool = False,
) -> list[str]:
    """What to tell a user before so many machines start beside ``others``, the busy threads."""
    each = max(1.0, (servers + others) / processors)
    alone = max(1.0, servers / processors)
    needed_mb = servers * (_MEMORY_MB * (1 + docker) + _BESIDE_MB)
    beside = (
        f"beside {others:.0f} other busy threads"
        if others >= 0.5
        else "all idle"
    )
    said = [
        f"{servers} virtual machines on {processors} processors, {beside}: up in about "
        f"{_UP_S * each:.0f} s; they take {needed_mb:,} of {free_mb:,} MB of free memory"
    ]
    if each > _MUCH_SLOWER * alone:
        said.append(
            f"warning: everything in this lab takes {each / alone:.1f} times as long as on an idle "
            "machine: end other programs first, or use --server-kind ssh"
        )
    if needed_mb > free_mb:
        said.append(
            "warning: memory may run short: use fewer servers, or --server-kind ssh"
        )
    return said


def choose_accelerator(
    base: Path,
    servers: int,
    say: Callable[[str], None],
) -> None:
    """Find out, once, whether a virtual machine boots with KVM here; else QEMU emulates it. Says
    how long so many will take."""
    record = base / "accelerator"
    machine = platform.release()
    if not record.exists() or record.read_text().split()[0] != machine:
        record.write_text(
            f"{machine} {'kvm' if _boots_with_kvm(base) else 'tcg'}\n"
        )
    is_emulated = _accelerator(base) == "tcg"
    if is_emulated and not _template(base).exists():
        say("booting the machine that servers are copied from (once)")
        argv = [*_machine("template", "tcg", base), *_disk("disk.qcow2")]
        make = [
            "sh",
            str(_TEMPLATE),
            str(base),
            str(_template(base)),
            str(_boot_s()),
            *argv,
        ]
        if subprocess.run(
            make,
            check=False,
            stdin=subprocess.DEVNULL,
        ).returncode:
            say("no copied machine: each server boots by itself")
    how = (
        "emulated (TCG): none boots with KVM here"
        if is_emulated
        else "with KVM"
    )
    say(f"servers are virtual machines, {how}")
    cores = len(os.sched_getaffinity(0))
    others = processes.busy_threads()
    for line in what_fits(
        servers,
        cores,
        others,
        _free_mb(),
        docker="docker" in base.name,
    ):
        say(line)
    # A disk with the packages of agents, so that pushes send and install only Patchlight.
    layer = [
        sys.executable,
        "-m",
        "patchlight.deploy.layer_image",
        str(base),
    ]
    subprocess.run(
        layer,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _boot_s() -> float:
    """How long a machine may take to boot beside what runs here."""
    return _BOOT_S * max(
        1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0))
    )


def _accelerator(base: Path) -> str:
    return (base / "accelerator").read_text().split()[1]


def _template(base: Path) -> Path:
    """Disk and memory of a machine that this QEMU emulated as far as all servers are alike."""
    made = os.stat(shutil.which(_QEMU) or base).st_mtime_ns
    return base / f"template-{_accelerator(base)}-{made}"


def _boots_with_kvm(base: Path) -> bool:
    if not Path("/dev/kvm").exists():
        return False
    # Its initrd powers off where there is no disk.
    trial = [*_machine("trial", "kvm", base), "-no-reboot"]
    with suppress(subprocess.SubprocessError):
        ended = subprocess.run(
            trial,
            input=b"",
            capture_output=True,
            timeout=_TRIAL_S,
            check=True,
        )
        return b"Linux version" in ended.stdout
    return False


class _Sshd:
    """Whether a server's sshd answers. It is asked with one connection at a time: each makes it
    fork, which takes an emulated processor a second."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._asked = 0.0
        self._connection = socket.socket()

    def __call__(self) -> bool:
        try:
            if self._connection.recv(4) == b"SSH-":
                self._connection.close()
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass
        if time.monotonic() > self._asked + _ASK_AGAIN_S:
            self._connection.close()
            self._asked = time.monotonic()
            self._connection = socket.socket()
            self._connection.setblocking(False)
            self._connection.connect_ex((self._address, 22))
        return False


def _machine(
    name: str,
    accel: str,
    base: Path,
) -> list[str]:
    processor = (
        ["tcg,thread=multi,tb-size=64", "max"]
        if accel == "tcg"
        else ["kvm", "host"]
    )
    memory = str(_MEMORY_MB * (1 + ("docker" in base.name)))
    return [
        _QEMU,
        "-name",
        name,
        "-accel",
        processor[0],
        "-cpu",
        processor[1],
        "-m",
        memory,
        "-smp",
        "1",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-serial",
        "mon:stdio",
        "-kernel",
        str(base / "vmlinuz"),
        "-initrd",
        str(base / "initrd"),
        "-append",
        # Without no_timer_check a kernel panics that boots on a busy machine.
        "console=ttyS0 TERM=dumb panic=1 no_timer_check mitigations=off loglevel=5 "
        "ipv6.disable_ipv6=1",
    ]


def make_disk(
    disk: Path,
    base: Path,
    server: Server,
    prefixes: tuple[int, int],
    mounts: Sequence[str],
) -> None:
    """Make a server's disk over the base's, and an archive of its own files, those in
    ``disk/upper``. ``prefixes``: lengths of the lab's network and of the management network;
    ``mounts``: folders for workers, which it gets if this machine has them."""
    network = disk / "upper/etc/systemd/network"
    rules = disk / "upper/etc/udev/rules.d"
    for folder in (network, rules, disk / "upper/etc/sysctl.d"):
        folder.mkdir(parents=True)
    *lab_nics, management = _nics(server)
    for number, nic in enumerate((*lab_nics, management)):
        name, mac, address = nic
        at = IPv4Interface((address, prefixes[nic is management]))
        settings = _NETWORK.format(
            name=name,
            address=at,
            online=nic is management,
        )
        if len(lab_nics) > 1 and nic is not management:
            table = _FIRST_TABLE + number
            settings += _OWN_TABLE.format(
                network=at.network,
                ip=address,
                table=table,
            )
        (network / f"10-{name}.link").write_text(
            _LINK.format(
                mac=mac,
                name=name,
            )
        )
        (network / f"10-{name}.network").write_text(settings)
    if len(lab_nics) > 1:
        (disk / "upper/etc/sysctl.d/nics.conf").write_text(_SEVERAL_NICS)
    soft_roce = (_SOFT_ROCE.format(name=name) for name, _, _ in lab_nics)
    (rules / "90-soft-roce.rules").write_text("".join(soft_roce))
    fstab = ""
    devices = list[str]()
    if (layer := base / "layer").exists():
        fstab = _MOUNT_LAYER
        devices = _drive("layer", str(layer.resolve()))
    for number, mount in enumerate(mounts):
        path = mount.removesuffix(WRITABLE)
        mode = "rw" if mount.endswith(WRITABLE) else "ro"
        if Path(path).is_dir():
            fstab += _FOLDER.format(number, path.replace(" ", "\\040"), mode)
            shared = (
                f"local,id=folder{number},security_model=passthrough,path="
            )
            shared += path.replace(",", ",,") + ",readonly=on" * (mode == "ro")
            device = (
                f"virtio-9p-pci,fsdev=folder{number},mount_tag=folder{number}"
            )
            devices += [
                "-fsdev",
                shared,
                "-device",
                device,
            ]
    (disk / "upper/etc/fstab").write_text(fstab)
    (disk / "devices").write_text("\n".join(devices))
    (disk / "upper").rename(disk / "server")
    pack = f"find . | {base}/busybox cpio -o -H newc 2>/dev/null >../own && truncate -s %512 ../own"
    subprocess.run(
        ["sh", "-c", pack],
        cwd=disk / "server",
        check=True,
    )
    backing = [
        "-F",
        "raw",
        "-b",
        str(base / "disk.ext4"),
    ]
    if (template := _template(base)).exists():
        (disk / "memory").symlink_to(template / "memory")
        backing = [
            "-F",
            "qcow2",
            "-b",
            str(template / "disk.qcow2"),
        ]
    image = [
        "qemu-img",
        "create",
        "-q",
        "-f",
        "qcow2",
        *backing,
        str(disk / "disk.qcow2"),
    ]
    subprocess.run(image, check=True)


def _disk(path: str) -> list[str]:
    """The devices that a machine has from its first boot on."""
    argv = [*_drive("disk", path, "cache=unsafe"), "-device", "virtio-rng-pci"]
    # The kernel's random numbers begin again.
    return [
        *argv,
        "-device",
        "vmgenid,guid=auto",
    ]


def _drive(
    name: str,
    path: str,
    options: str = "format=raw,readonly=on",
) -> list[str]:
    drive = f"file={path},if=none,id={name},{options}"
    return [
        "-drive",
        drive,
        "-device",
        f"virtio-blk-pci,drive={name}",
    ]


def _nics(server: Server) -> list[tuple[str, str, IPv4Address]]:
    """Name, MAC and address of each NIC of a server, the management interface's last."""
    assert server.ssh.address is not None
    address = IPv4Address(server.ssh.address)
    nics = [(nic.name, nic.mac, nic.address) for nic in server.nics]
    return [*nics, (interface_of(server), default_mac(address), address)]


def plug(lab: str, server: Server) -> None:
    """Make the taps of a server, and have frames pass between them and its links."""
    path = namespaces.namespace_path(namespace_name(lab, server.name))
    with Netlink(path) as netlink:
        for number, (name, _, _) in enumerate(_nics(server)):
            with namespaces.entered(path):
                _make_tap(tap := f"tap{number}")
            found = links.list_links(netlink)
            a = found[tap].index
            b = found[name].index
            links.ready_ingress(netlink, [a, b])
            ways = [
                *links.redirect(name, a, [b]),
                *links.redirect(name, b, [a]),
            ]
            sized = [links.set_mtu(a, _mtu_of(server, name), tap)]
            netlink.run(
                [
                    *sized,
                    *ways,
                    links.set_up(a, tap),
                    links.set_up(b, name),
                ]
            )


def _mtu_of(server: Server, name: str) -> int:
    """The MTU of a NIC of a server, or of its management interface."""
    return next(
        (n.mtu for n in server.nics if n.name == name and n.mtu), USUAL_MTU
    )


def _make_tap(name: str) -> None:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(
            fd,
            _TUNSETIFF,
            struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI),
        )
        fcntl.ioctl(fd, _TUNSETPERSIST, 1)
    finally:
        os.close(fd)


def virtual_service(
    lab: str,
    base: Path,
    server: Server,
) -> LabService:
    """The QEMU process of a server that has its disk and its taps."""
    disk = states.disk_dir(lab) / server.name
    argv = [
        "sh",
        "-c",
        _START,
        str(disk),
        *_machine(server.name, _accelerator(base), base),
    ]
    # What follows the template's devices is found once the memory is there.
    argv += [*_disk("disk.qcow2"), *_drive("own", "own")]
    argv += (disk / "devices").read_text().splitlines()
    for number, (name, mac, _) in enumerate(_nics(server)):
        tap = f"tap,id=nic{number},ifname=tap{number},script=no,downscript=no,vnet_hdr=off"
        nic = f"virtio-net-pci,netdev=nic{number},mac={mac},host_mtu={_mtu_of(server, name)}"
        argv += [
            "-netdev",
            tap,
            "-device",
            f"{nic},romfile=",
        ]
    return LabService(
        name=service_name(server.name),
        argv=argv,
        ready=_Sshd(str(server.ssh.address)),
        namespace=namespaces.namespace_path(namespace_name(lab, server.name)),
        limit_s=_boot_s(),
        abrupt=True,
    )
