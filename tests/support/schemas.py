"""The validator of JSON Schema, without its grammar of IRIs."""

import sys

# That grammar, which no schema of ours needs, takes longer to import than all else.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from jsonschema import Draft202012Validator  # noqa: E402

__all__ = ["Draft202012Validator"]
