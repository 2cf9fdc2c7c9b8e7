"""Typed, frozen configuration: the machinery under `lmcore.config`, which knows no particular field.

Everything is checked when it is constructed: an unknown key names its nearest neighbour, an impossible combination is
refused with the reason. Fields declared with `derived_field` are filled from the others and count as *not set*, so that
`replace(config, {"model.d_model": 256})` derives them again.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self, TypeGuard, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator


def derived_field(description: str) -> Any:
    """A field that is filled from the others when it is not set."""
    return Field(default=None, description=description)


class ConfigError(ValueError):
    """A configuration that cannot be built; the message says which key, why, and what would be right."""


class Config(BaseModel):
    """Base of all configuration: frozen, strictly typed, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(f"unknown key {key!r} in {cls.__name__}{did_you_mean(key, cls.model_fields)}")
        return values

    @model_validator(mode="after")
    def _derive_and_check(self) -> Self:
        for name, value in self.derived().items():
            if name not in self.model_fields_set:
                self.__dict__[name] = value  # not through setattr: frozen, and it must stay "not set"
        self.check()
        return self

    def derived(self) -> dict[str, Any]:
        """What each `derived_field` field is when it is not set."""
        return {}

    def check(self) -> None:
        """Raise ValueError for a combination that is impossible or in which a switch has no effect."""

    def default(self, name: str) -> Any:
        """The declared default of a field."""
        return _defaults(type(self))[name]

    def explicit(self) -> dict[str, Any]:
        """Only what was set, nested: the input that builds this config again."""
        values = {name: getattr(self, name) for name in sorted(self.model_fields_set)}
        return {k: v.explicit() if isinstance(v, Config) else v for k, v in values.items()}

    def identity(self) -> dict[str, Any]:
        """What makes two configs the same experiment: fields at their default, paths and logging left out."""
        derived = self.derived()
        out: dict[str, Any] = {}
        for name, default in _defaults(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, Config):
                if nested := value.identity():
                    out[name] = nested
            elif name not in self.NOT_IDENTITY and value != derived.get(name, default):
                out[name] = value + 0.0 if isinstance(value, float) else value  # -0.0 and 0.0 are one value
        return out


@cache
def _defaults(kind: type[Config]) -> dict[str, Any]:
    return {name: field.get_default() for name, field in kind.model_fields.items()}


AnyConfig = TypeVar("AnyConfig", bound=Config)


def short_hash(value: Mapping[str, Any]) -> str:
    """12 hex digits over canonical JSON: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def did_you_mean(word: str, known: Any) -> str:
    """' (did you mean ...?)' or '' for error messages."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def from_dict(kind: type[AnyConfig], values: Mapping[str, Any]) -> AnyConfig:
    """Build a config from nested plain values, as stored in JSON. Raises ConfigError."""
    try:
        return kind.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def flatten(config: Config) -> dict[str, Any]:
    """Every field that can matter to the result by its dotted name: paths and logging are left out."""
    out: dict[str, Any] = {}
    for name in set(type(config).model_fields) - config.NOT_IDENTITY:
        value = getattr(config, name)
        nested = flatten(value) if isinstance(value, Config) else None
        out |= {name: value} if nested is None else {f"{name}.{key}": v for key, v in nested.items()}
    return out


def replace(config: AnyConfig, changes: Mapping[str, Any]) -> AnyConfig:
    """A copy with dotted keys changed: `replace(run, {"model.ffn": "relu"})`. Raises ConfigError."""
    values = config.explicit()
    for key, value in changes.items():
        field_type(type(config), key)  # names the nearest key if this one does not exist
        *parents, leaf = key.split(".")
        node = values
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value.explicit() if isinstance(value, Config) else value
    return from_dict(type(config), values)


def field_type(kind: type[Config], key: str) -> Any:
    """The declared type of a dotted key. Raises ConfigError naming the nearest existing key."""
    annotation: Any = kind
    for name in key.split("."):
        if not _is_config(annotation):
            raise ConfigError(f"{key!r}: {key.partition('.' + name)[0]} is a value, it has no key {name!r}")
        if name not in annotation.model_fields:
            raise ConfigError(f"unknown key {key!r}{did_you_mean(key, _dotted(kind))}")
        annotation = annotation.model_fields[name].annotation
    return annotation


def _is_config(annotation: Any) -> TypeGuard[type[Config]]:
    return isinstance(annotation, type) and issubclass(annotation, Config)


def _dotted(kind: type[Config]) -> list[str]:
    names: list[str] = []
    for name, field in kind.model_fields.items():
        inner = field.annotation
        names += [f"{name}.{rest}" for rest in _dotted(inner)] if _is_config(inner) else [name]
    return names


def parse(text: str, kind: type[Config]) -> tuple[str, Any]:
    """`"train.lr=3e-3"` to `("train.lr", 0.003)`, typed like the field. Raises ConfigError."""
    key, separator, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not separator:
        raise ConfigError(f"expected key=value, got {text!r}")
    annotation = field_type(kind, key)
    if isinstance(annotation, type) and issubclass(annotation, Config):
        raise ConfigError(
            f"{key!r} is a group; set one of its keys, such as {key}.{next(iter(annotation.model_fields))}"
        )
    if type(None) in get_args(annotation) and value.lower() in ("none", "null"):
        return key, None
    if annotation is int and "e" in value.lower() and _is_whole(value):
        value = str(int(float(value)))  # 1e4 steps
    try:
        return key, TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{key}={value}: {_wanted(error)}") from None


def _wanted(error: ValidationError) -> str:
    """What one value should have been; a field of several types has a problem with each."""
    begin, problems = "Input should be ", error.errors()
    if not all(problem["msg"].startswith(begin) for problem in problems):
        return explain(error)
    types = dict.fromkeys(problem["msg"].removeprefix(begin) for problem in problems)
    return f"{begin}{' or '.join(types)}, not {problems[0]['input']!r}"


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except ValueError:
        return False


def explain(error: ValidationError, positional: Sequence[str] = ()) -> str:
    """One line per problem: where, and what is wrong. `positional` names arguments that were given without a name."""
    lines = []
    for problem in error.errors():
        first, *inner = problem["loc"] or ("",)
        first = positional[first] if isinstance(first, int) and first < len(positional) else first
        where = ".".join(str(part) for part in (first, *inner) if part != "[key]")
        what = problem["msg"].removeprefix("Value error, ")
        given = "" if isinstance(problem["input"], dict) else f", not {problem['input']!r}"
        if problem["type"] == "value_error":
            given = ""
        lines.append(f"{where}: {what}{given}" if where else what + given)
    return "\n".join(lines)
