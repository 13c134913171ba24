"""Whether the device that answers over TLS is the one that is meant, before it gets a password.

Switches in labs have certificates that they signed themselves, so no authority vouches for
them. ``verify`` in the driver's dialect says what is asked for instead:

``first-use`` (built in): as SSH does it. The certificate that an address shows first is
written into the file of pins, with a warning in the log; from then on that address must show
the same one.
``pinned``: only certificates that are in the file already.
``ca``: signed by an authority that this machine trusts, for that host.
``off``: none is checked. Whoever stands between reads the password.

The file has a line for each device, ``10.0.0.5:443 sha256:<64 hex digits>``: what
``openssl x509 -fingerprint -sha256`` shows, without the colons. ``PATCHLIGHT_TLS_PINS`` names
it; else it is ``~/.config/patchlight/tls-pins``.
"""

import hashlib
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from patchlight.controller.circuits.contract import DeviceUnreachable
from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.files import append_line, user_folder

log = logging.getLogger("patchlight.ocs.http")

PINS_VARIABLE = "PATCHLIGHT_TLS_PINS"
RULES = ("first-use", "pinned", "ca", "off")


class DeviceNotTrusted(DeviceUnreachable):
    """What answers may be another device: it was told nothing, not even who asks."""


def pins_file() -> Path:
    """Where the pins are kept."""
    if named := os.environ.get(PINS_VARIABLE):
        return Path(named)
    return user_folder("XDG_CONFIG_HOME", ".config") / "patchlight" / "tls-pins"


def fingerprint(certificate: bytes) -> str:
    """``sha256:…`` of a certificate in DER."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


class Trust:
    """The rule for one device. ``refused`` says why the last certificate was not accepted."""

    def __init__(self, address: str, rule: str, *, old_tls: bool = False) -> None:
        if rule not in RULES:
            raise BadInput(f"verify cannot be {rule!r} in a dialect: one of {', '.join(RULES)}")
        self.refused = ""
        self._address, self._rule, self._old_tls = address, rule, old_tls

    def context(self) -> ssl.SSLContext:
        """What to make TLS connections with."""
        if self._rule == "ca":
            context = ssl.create_default_context()
        else:
            # Without the machine's certificates: to read them takes some 100 ms.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self._rule in ("first-use", "pinned"):
            context.sslobject_class = _checking(self._check)
        if self._old_tls:
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
        return context

    def _check(self, certificate: bytes) -> None:
        """``ssl.SSLError`` ends the handshake before anything of ours is sent."""
        self.refused = ""
        shown, file = fingerprint(certificate), pins_file()
        try:
            known = self._known(file)
            if known is None and self._rule == "first-use":
                self._keep(file, shown)
                known = shown
                log.warning("%s: pinned its certificate %s in %s", self._address, shown, file)
        except (OSError, UnicodeDecodeError) as error:
            self.refused = f"the pins of certificates in {file}: {error}"
        else:
            if known is None:
                self.refused = f"{self._address} shows {shown}, and {file} has no pin of it"
            elif known != shown:
                self.refused = f"{self._address} shows {shown}, but {file} has {known}"
        if self.refused:
            raise ssl.SSLError(self.refused)

    def _known(self, file: Path) -> str | None:
        if not file.exists():
            return None
        for line in file.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) >= 2 and words[0] == self._address:
                return words[1].lower()
        return None

    def _keep(self, file: Path, shown: str) -> None:
        append_line(file, f"{self._address} {shown}")


def _checking(check: Callable[[bytes], None]) -> type[ssl.SSLObject]:
    """A TLS connection that has its peer's certificate checked as the handshake ends."""

    class Checked(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(binary_form=True) or b"")

    return Checked
