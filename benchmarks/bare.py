"""A stand-in for pydantic where that is missing, for a machine that has only torch: importing this module is enough.

`lmcore.typed` says what is needed of it. It fills in defaults, nests and derives, and believes what it is given:
the configs of a benchmark are its own.
"""

import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any


class _Field:
    """What a class body declares: default and description."""

    def __init__(self, default: Any = None, description: str | None = None, **limits: Any) -> None:
        self.default, self.description, self.annotation = default, description, Any

    def get_default(self) -> Any:
        return self.default


class _BaseModel:
    model_fields: typing.ClassVar[dict[str, _Field]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        hints = typing.get_type_hints(cls)
        names = [n for n in inspect.get_annotations(cls) if typing.get_origin(hints[n]) is not typing.ClassVar]
        cls.model_fields = dict(cls.model_fields)
        for name in names:
            given = cls.__dict__.get(name)
            field = given if isinstance(given, _Field) else _Field(given)
            field.annotation = hints[name]
            cls.model_fields[name] = field

    def __init__(self, **values: Any) -> None:
        self.model_fields_set = set(values)
        for name, field in type(self).model_fields.items():
            value = values.get(name, field.default)
            nested = isinstance(value, Mapping) and isinstance(field.annotation, type)
            self.__dict__[name] = field.annotation(**value) if nested else value
        self._derive_and_check()  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            getattr(self, name) == getattr(other, name) for name in type(self).model_fields
        )

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in type(self).model_fields))

    @classmethod
    def model_validate_json(cls, text: str) -> "_BaseModel":
        return cls(**json.loads(text))


def _model_validator(mode: str) -> Callable[[Any], Any]:
    return lambda method: method


def install() -> None:
    """Have `import pydantic` find the stand-in, where the real one is missing."""
    try:
        import pydantic  # noqa: F401
    except ImportError:
        module = types.ModuleType("pydantic")
        found = {"BaseModel": _BaseModel, "ConfigDict": dict, "Field": _Field, "model_validator": _model_validator}
        module.__dict__.update(found, TypeAdapter=object, ValidationError=type("ValidationError", (ValueError,), {}))
        sys.modules["pydantic"] = module


install()
