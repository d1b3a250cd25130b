"""Configurations: frozen, typed and validated.

What differs from the defaults names a configuration. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from capslib.data.registry import SETS
from capslib.errors import unknown
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
    """The base of every configuration and of a record.

    It is frozen and typed, and has no unknown fields.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Config(Model):
    """A configuration: its defaults are the paper's setting."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, fields: Any) -> Any:
        """Raise ValueError for an unknown field, with the nearest one that there is."""
        for name in fields if isinstance(fields, Mapping) else ():
            if name not in cls.model_fields:
                raise ValueError(unknown(f"field of {cls.__name__}", name, cls.model_fields))
        return fields

    def differences(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, as JSON has them.

        They tell a configuration from others. A new field with a default changes none of these.
        """
        return self.model_dump(mode="json", exclude_defaults=True)


def matches(fields: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Return whether fields, as JSON has them, have these values; a tuple equals a list.

    >>> matches({"sizes": [32, 8], "bias": True}, {"sizes": (32, 8)})
    True
    """
    for name, value in where.items():
        expected = list(value) if isinstance(value, tuple) else value
        if name not in fields or fields[name] != expected:
            return False
    return True


def hash_of(value: Any) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 of a value that JSON can hold."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _name_in(registry: Registry) -> Any:
    """Return the type of the names of a registry."""

    def check(name: str) -> str:
        if name not in registry:
            raise ValueError(unknown(registry.kind, name, registry))
        return name

    return Annotated[str, AfterValidator(check)]


DataName = _name_in(SETS)
NetworkName = _name_in(NETWORKS)
RoutingName = _name_in(ROUTINGS)
LossName = _name_in(LOSSES)
