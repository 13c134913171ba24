"""The keys of a lab file under ``controller: {access: …}``: what users of its machine may do."""

from typing import Any

from patchlight.testbed.io.fields import FieldType, choice
from patchlight.testbed.io.groups import Fields, Group, Key
from patchlight.testbed.lab.access import ROLES, USUAL_ACCESS, Access, Role

_ROLE = choice("a role", str(Role.NOBODY), *ROLES)


def access_group(user_name: FieldType) -> Group:
    """Who may do what; ``user_name`` is what a group of users can be called."""
    usual = USUAL_ACCESS
    return Group(
        "who may do what",
        Key("group", user_name, "the group of users who work with the lab", default=usual.group),
        Key("members", _ROLE, "what they may do", default=str(usual.members)),
        Key("others", _ROLE, "what the machine's other users may do", default=str(usual.others)),
    )


def access_of(fields: Fields) -> Access:
    """What a file without mistakes says under ``access:``."""
    said: dict[str, Any] = {key: item.value for key, item in fields.items()}
    for key in ("members", "others"):
        if key in said:
            said[key] = Role.named(said[key])
    return Access(**said)


def access_document(access: Access) -> dict[str, str]:
    """The keys that say the same in a file; what is as usual is left out."""
    return {
        key: str(value)
        for key, value in vars(access).items()
        if value != getattr(USUAL_ACCESS, key)
    }
