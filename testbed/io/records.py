"""Files whose keys follow from a dataclass: each field is a ``setting``."""

import dataclasses
from typing import Any, Self

from pydantic import create_model, model_validator

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.keys import Keys, key, needed, refused
from patchlight.testbed.io.reader import BROKEN

_REQUIRED: Any = dataclasses.MISSING


def setting(
    type: Any,
    about: str,
    default: Any = _REQUIRED,
) -> Any:
    """A dataclass field that a file may set; without a default, the key is required.

    ``type`` is what pydantic reads, ``about`` describes it to users. A dict as default is copied
    for each object.
    """
    metadata = {"type": type, "about": about}
    if isinstance(default, dict):
        return dataclasses.field(
            default_factory=default.copy,
            metadata=metadata,
        )
    return dataclasses.field(
        default=default,
        metadata=metadata,
    )


class _Record(Keys):
    @model_validator(mode="after")
    def _is_right_as_a_whole(self) -> Self:
        if BROKEN not in self.__dict__.values():
            try:
                self.made()
            except BadInput as error:
                raise refused(error) from None
        return self


def record(cls: type[Any], title: str) -> Any:
    """The model of a group with a key for each ``setting`` of a dataclass; makes its objects."""
    declared: Any = {
        each.name: (each.metadata["type"], _key(each))
        for each in dataclasses.fields(cls)
    }
    made = create_model(
        cls.__name__,
        __base__=_Record,
        __cls_kwargs__={"title": title},
        **declared,
    )
    made.makes = cls
    return made


def _key(field: dataclasses.Field[Any]) -> Any:
    about = field.metadata["about"]
    factory: Any = field.default_factory
    default = field.default if factory is _REQUIRED else factory()
    if default is _REQUIRED:
        return needed(about, alias=field.name)
    shown = "" if dataclasses.is_dataclass(default) else _shown(default)
    return key(about, shown, alias=field.name)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value) or "none"
