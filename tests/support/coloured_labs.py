"""Labs with four tunable transceivers: on a coupler, and on a wavelength switch."""

_SERVER = """
  - name: server{n}
    management: server{n}:8471
    nics: [{{name: nic0, address: 10.0.0.{n}, rate: 10Gbps, transceiver:
      {{tunable: 193.100-193.250, channel: "{channel}", tuning_time: 1ms}}}}]
"""


def _lab(name: str, channels: list[str], rest: str) -> str:
    servers = "".join(
        _SERVER.format(n=n, channel=c) for n, c in enumerate(channels, 1)
    )
    return f"name: {name}\nnetwork: 10.0.0.0/24\nservers:{servers}{rest}"


_STAR = """
passive_parts: [{name: star1, kind: coupler, ports: 4}]
fibres: ["server[1-4].nic0 - star1.[1-4]"]
"""
_WSS = """
wavelength_switches: [{name: wss1, inputs: 4, cross_connects: ["1-2@193.100", "3-4@193.100"]}]
fibres: ["server[1-4].nic0 - wss1.[1-4]"]
"""
STAR = _lab("star", ["193.100", "193.150", "193.200", "193.250"], _STAR)
WAVELENGTHS = _lab("wavelengths", ["193.100"] * 4, _WSS)
