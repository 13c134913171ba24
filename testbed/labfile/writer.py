"""A ``Lab`` as the YAML text of a lab file, short and in the order of its keys."""

from typing import Any

import yaml

from patchlight.testbed.io.fields import Hexadecimal, Listed, OneLine, is_bare_text
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.schema import LAB

_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MAP, _SEQ, _STR, _INT = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int"))


class _Dumper(_Base):  # type: ignore[misc]
    """PyYAML's safe dumper, told which parts go on one line; without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: Any, text: str) -> Any:
    # PyYAML quotes what YAML 1.1 would misread; the reader knows some more numbers than that.
    return dumper.represent_scalar(_STR, text, style=None if is_bare_text(text) else '"')


_Dumper.add_representer(str, _text)
_Dumper.add_representer(OneLine, lambda d, v: d.represent_mapping(_MAP, v, flow_style=True))
_Dumper.add_representer(Listed, lambda d, v: d.represent_sequence(_SEQ, v, flow_style=True))
_Dumper.add_representer(Hexadecimal, lambda d, v: d.represent_scalar(_INT, hex(v)))


def write_lab(lab: Lab) -> str:
    """YAML text that ``parse_lab`` reads back equal; what has its default is left out."""
    return to_yaml(LAB.written(lab))


def to_yaml(document: Any) -> str:
    """A lab's document or a part of it as YAML text."""
    text: str = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=1_000_000,
        default_flow_style=False,
    )
    return text
