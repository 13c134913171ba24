"""The emulated devices behind SSH as a client by hand sees them: paramiko, nothing of ours."""

import re
from contextlib import suppress
from pathlib import Path

import paramiko
import pytest

from patchlight.testbed.lab.portmap import PortMap
from tests.support.ssh_clients import logged_in, until
from tests.support.waiting import PATIENCE_S

HELLO = (
    '<hello xmlns="urn:ietf:params:xml:ns:netconf:base:1.0"><capabilities>'
    "<capability>urn:ietf:params:netconf:base:{base}</capability></capabilities></hello>]]>]]>"
)
EDIT = (
    '<edit-config><target><running/></target><config><cross-connects xmlns="http://www.polatis.com'
    '/yang/optical-switch"{whole}>{pairs}</cross-connects></config></edit-config>'
)
PAIR = "<pair{operation}><ingress>{inp}</ingress><egress>{out}</egress></pair>"
FILTERED = (
    '<get><filter><{top} xmlns="http://www.polatis.com/yang/optical-switch">{what}</{top}>'
    "</filter></get>"
)


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_a_shell_of_the_telescent() -> None:
    with logged_in("telescent-ssh") as (transport, device):
        channel = transport.open_session()
        channel.get_pty()
        channel.invoke_shell()
        until(channel, "NTM> ")

        def say(command: str) -> str:
            channel.sendall(f"{command}\r".encode())
            echo, _, rest = until(channel, "NTM> ").partition("\r\n")
            assert echo == command
            return rest.removesuffix("NTM> ").strip()

        rows = re.sub(r".\[\d+m", "", say("switchstate")).split("\r\n")
        assert rows[0] == "R0#A U0 U1 U2 U3 U4 U5 AL0 U7 U8 U9 U10 U11"
        assert (
            rows[1] == "R1#A U12 U13 U14 U15 N16 N17 N18 N19 N20 N21 N22 N23"
        )
        assert say("connect -in 2 -out 6") == "ERROR: port 6 is locked"
        assert say("unlock --force -out 6") == ""
        assert say("connect -in 2 -out 6") == "ERROR: port 2 is allocated"
        assert say("connect --force -in 2 -out 6") == "connected 2 to 6"
        assert device.map == PortMap.of([(3, 7)])
        # One side unlocked is not enough; what is free already is no error.
        say("unlock --force -in 2")
        assert say("unallocate --force -out 6") == "ERROR: port 6 is locked"
        assert [say(f"unlock --force {n}") for n in (2, 6)] == ["", ""]
        assert say("unallocate --force -in 2") == ""
        assert say("unallocate --force -out 6") == ""
        assert device.map == PortMap()
        assert say("connect --force 4 5").startswith("connected 4 to 5")
        assert device.map == PortMap.duplex([(5, 6)])
        assert (
            say("connect --force -in 4 -out 99")
            == "ERROR: port 99 does not exist"
        )
        assert "ERROR" in say("connect --force -in 4")
        assert "ERROR" in say("reboot now")
        channel.sendall(b"exit\r")
        while channel.recv(100):
            pass


@pytest.mark.parametrize("base", ["1.0", "1.1"])
def test_netconf_by_hand_in_both_framings(base: str) -> None:
    with logged_in("polatis-netconf") as (transport, device):
        channel = transport.open_session()
        channel.invoke_subsystem("netconf")
        hello = until(channel, "]]>]]>")
        assert "optical-switch&amp;revision=2018-03-22" in hello
        channel.sendall(HELLO.format(base=base).encode())

        def say(operation: str) -> str:
            nc = "urn:ietf:params:xml:ns:netconf:base:1.0"
            text = f'<rpc xmlns="{nc}" xmlns:nc="{nc}" message-id="7">{operation}</rpc>'
            # In two chunks, in the middle of a name.
            chunks = "".join(
                f"\n#{len(part)}\n{part}" for part in (text[:9], text[9:])
            )
            framed = f"{text}]]>]]>" if base == "1.0" else f"{chunks}\n##\n"
            channel.sendall(framed.encode())
            answer = until(channel, "]]>]]>" if base == "1.0" else "\n##\n")
            assert 'message-id="7"' in answer
            return re.sub(r"opsw:| xmlns:opsw=\"[^\"]*\"", "", answer)

        def edit(
            *pairs: tuple[int, int], operation: str = "", whole: str = ""
        ) -> str:
            given = f' nc:operation="{operation}"' if operation else ""
            listed = "".join(
                PAIR.format(operation=given, inp=i, out=o) for i, o in pairs
            )
            over = f' nc:operation="{whole}"' if whole else ""
            return say(EDIT.format(whole=over, pairs=listed))

        def get(top: str, what: str = "") -> str:
            return say(FILTERED.format(top=top, what=what))

        assert "<pair><ingress>1</ingress><egress>23</egress></pair>" in get(
            "cross-connects"
        )
        assert "<ok" in edit((2, 24), (3, 25))
        assert device.map == PortMap.of([(1, 7), (2, 8), (3, 9)])
        one = get("cross-connects", "<pair><ingress>2</ingress></pair>")
        assert one.count("<pair>") == 1
        assert "<egress>24</egress>" in one
        assert "<ok" in edit((2, 24), operation="delete")
        assert "data-missing" in edit((2, 24), operation="delete")
        assert "<ok" in edit((2, 24), operation="remove")
        assert "data-exists" in edit((3, 30), operation="create")
        assert "Invalid OXC port: 1000" in edit((1000, 24))
        assert "Invalid OXC port: nonsense" in say(
            EDIT.format(
                whole="",
                pairs=PAIR.format(operation="", inp="nonsense", out=24),
            )
        )
        # A new cross-connect takes its ports from those that hold them.
        assert "<ok" in edit((4, 23))
        assert device.map == PortMap.of([(4, 7), (3, 9)])
        assert "<ok" in edit((5, 21), whole="replace")
        assert device.map == PortMap.of([(5, 5)])
        running = say("<get-config><source><running/></source></get-config>")
        assert "<ingress>5</ingress>" in running
        assert "product-information" not in running
        assert "<model-name>I-OST-16x16-LU1-DMHNS</model-name>" in get(
            "product-information"
        )
        powers = get("opm-power", "<port><port-id>1</port-id><power/></port>")
        assert re.findall(r"<power>([^<]*)", powers) == ["0.00"]
        assert get("port-config").count("ENABLED") == 32
        assert "operation-not-supported" in say("<commit/>")
        assert "<ok" in say("<create-subscription/>")
        assert "<ok" in say("<close-session/>")


@pytest.mark.parametrize("driver", ["polatis-netconf", "telescent-ssh"])
def test_only_what_the_device_has_is_given(driver: str) -> None:
    with logged_in(driver) as (transport, _):
        channel = transport.open_session()
        wants = {"polatis-netconf": channel.invoke_shell}
        with pytest.raises(paramiko.SSHException):
            wants.get(driver, lambda: channel.invoke_subsystem("netconf"))()
        with pytest.raises(paramiko.ChannelException):
            transport.open_channel(
                "direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1)
            )


@pytest.mark.parametrize(
    "nonsense", [b"]]>]]>", b"<a>]]>]]>", b"<a/>]]>]]>", b"x" * (2 << 20)]
)
def test_what_is_no_netconf_ends_the_session(nonsense: bytes) -> None:
    with logged_in("polatis-netconf") as (transport, _):
        channel = transport.open_session()
        channel.invoke_subsystem("netconf")
        until(channel, "]]>]]>")
        channel.settimeout(PATIENCE_S)
        # The end may come while it is still being sent.
        with suppress(OSError, EOFError):
            channel.sendall(nonsense)
        assert channel.recv(100) == b""
