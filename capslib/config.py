"""Configurations: frozen, typed and validated; what differs from the defaults names one.
Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ValidationInfo,
    field_validator,
    model_validator,
)

from capslib.data.registry import SETS
from capslib.errors import check_name, unknown
from capslib.registry import LOSSES, NETWORKS, ROUTINGS, Registry

__all__ = [
    "Config",
    "DataName",
    "LossName",
    "Model",
    "NetworkName",
    "RoutingName",
    "hash_of",
    "matches",
]


class Model(BaseModel):
    """Frozen, typed, no unknown fields: the base of every configuration and of everything in a
    record.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Config(Model):
    """A configuration: its defaults are the paper's setting, and what differs from them tells
    it from others.
    """

    ARM: ClassVar[frozenset[str]] = frozenset()
    """The fields that tell the arms of an experiment apart; the others differ from the paper by
    way of its budget.
    """
    UNUSED: ClassVar[frozenset[str]] = frozenset()
    """Inherited fields that change nothing here: another value than the default is refused, for
    a record would tell a lie.
    """

    @model_validator(mode="before")
    @classmethod
    def _known(cls, fields: Any) -> Any:
        for name in fields if isinstance(fields, Mapping) else ():
            if name not in cls.model_fields:
                raise ValueError(unknown(f"field of {cls.__name__}", name, cls.model_fields))
        return fields

    @field_validator("*")
    @classmethod
    def _used(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name in cls.UNUSED and value != cls.model_fields[info.field_name].default:
            raise ValueError(f"{cls.__name__} makes no use of it")
        return value

    def differences(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as JSON has them. A new field with a
        default changes none of these.
        """
        return self.model_dump(mode="json", exclude_defaults=True)

    def values(self, mode: str = "python") -> dict[str, Any]:
        """Return the value of every field."""
        return self.model_dump(mode=mode)

    def fields(self) -> dict[str, Any]:
        """Return the value of every field, as JSON has them."""
        return self.values("json")

    def titles(self) -> dict[str, str]:
        """Return the title of every field, for readers."""
        return {name: info.title or name for name, info in type(self).model_fields.items()}

    def as_in_paper(self) -> Self:
        """Return the paper's own setting."""
        return self.setting()

    def arm(self) -> frozenset[str]:
        """The fields that do not count as a deviation from the paper: those of :attr:`ARM`, and
        those without a default.
        """
        return self.ARM | {
            name for name, field in type(self).model_fields.items() if field.is_required()
        }

    def setting(self) -> Self:
        """The paper's own setting of the same arm."""
        return type(self)(**self.model_dump(include=set(self.arm())))

    def matches(self, where: Mapping[str, Any]) -> bool:
        """Whether these fields have these values; a list stands for a tuple. Raises UserError
        for an unknown field.
        """
        own = self.model_dump(mode="json")
        for name in where:
            check_name(f"field of {type(self).__name__}", name, own)
        return matches(own, where)


def matches(fields: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether fields, as JSON has them, have these values; a tuple stands for a list.

    >>> matches({"sizes": [32, 8], "bias": True}, {"sizes": (32, 8)})
    True
    """
    wanted = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in where.items()
    }
    return all(name in fields and fields[name] == value for name, value in wanted.items())


def hash_of(thing: Any) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of something that JSON can hold."""
    return hashlib.sha256(json.dumps(thing, sort_keys=True).encode()).hexdigest()[:16]


def _named(known: Registry) -> Any:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(unknown(known.kind, name, known))
        return name

    return Annotated[str, AfterValidator(check)]


DataName, NetworkName, RoutingName, LossName = map(_named, (SETS, NETWORKS, ROUTINGS, LOSSES))
