"""The telnet noise in a TL1 stream (RFC 854): taken out, and every option politely refused."""

from __future__ import annotations

_IAC, _DONT, _DO, _WONT, _WILL, _SB, _SE = 255, 254, 253, 252, 251, 250, 240
_REPLIES_LIMIT = 3 * 256


class TelnetFilter:
    """Removes IAC sequences and NULs from a byte stream, across any cut of it."""

    def __init__(self) -> None:
        self._state = "data"  # data | iac | option | sub | sub-iac
        self._verb = 0
        self._replies = bytearray()

    def filter(self, data: bytes) -> bytes:
        """The bytes of ``data`` that are no telnet."""
        if self._state == "data" and _IAC not in data:
            return data.replace(b"\0", b"") if 0 in data else data
        out = bytearray()
        for byte in data:
            self._take(byte, out)
        return bytes(out)

    def take_replies(self) -> bytes:
        """Refusals of the options offered or asked for since the last call."""
        replies = bytes(self._replies)
        self._replies.clear()
        return replies

    def _take(self, byte: int, out: bytearray) -> None:
        if self._state == "data":
            if byte == _IAC:
                self._state = "iac"
            elif byte:
                out.append(byte)
        elif self._state == "iac":
            self._state = "data"
            if byte == _IAC:
                out.append(byte)
            elif byte in (_DO, _DONT, _WILL, _WONT):
                self._state, self._verb = "option", byte
            elif byte == _SB:
                self._state = "sub"
        elif self._state == "option":
            self._state = "data"
            refusal = {_DO: _WONT, _WILL: _DONT}.get(self._verb)
            # Bounded: a flood of negotiation is not answered beyond every option once.
            if refusal is not None and len(self._replies) < _REPLIES_LIMIT:
                self._replies += bytes((_IAC, refusal, byte))
        elif self._state == "sub":
            if byte == _IAC:
                self._state = "sub-iac"
        else:
            self._state = "data" if byte == _SE else "sub"
