"""Values that a key of the config may be given: checked against its type, and as the points of a grid."""

import math
from typing import Any, get_args

from lmcore.config import AUTO, Config, ConfigError, Means, RunConfig
from lmcore.typed import field_type
from sweeps.spec import Choices, Range, SweepError

FORBIDDEN = {
    "seed": "trials share their seed, so that they can be compared",
    "data": "losses on other data or tokens cannot be compared",
    "train.eval_sequences": "losses on other validation sequences cannot be compared",
    "train.steps": "longer training always looks better",
    "model.context": "losses at other contexts cannot be compared",
    "train.eval_every": "it changes nothing that is learnt",
}


def points(key: str, part: Range | Choices) -> list[Any]:
    """The values of a grid, those of a range in rising order."""
    if isinstance(part, Choices):
        return list(part.values)
    low, high = (math.log(part.low), math.log(part.high)) if part.log else (part.low, part.high)
    between = [low + (high - low) * i / (part.points - 1) for i in range(1, part.points - 1)]
    inner = [math.exp(value) if part.log else value for value in between]
    found = [float(part.low), *inner, float(part.high)]
    return sorted({round(point) for point in found}) if is_whole(key) else found


def check_part(what: str, key: str, part: Range | Choices) -> None:
    """Raise SweepError, which begins with `what`, unless the key exists and may take these values."""
    try:
        kind = field_type(RunConfig, key)
    except ConfigError as error:
        raise SweepError(f"{what}: {error}") from None
    if why := FORBIDDEN.get(key) or FORBIDDEN.get(key.partition(".")[0]):
        raise SweepError(f"{what}: {key!r} cannot be varied: {why}")
    if isinstance(kind, type) and issubclass(kind, Config):
        raise SweepError(f"{what}: {key!r} is a group; name one of its keys")
    if isinstance(part, Choices):
        _check_choices(what, key, part)
    else:
        _check_range(what, key, part)


def _check_choices(what: str, key: str, part: Choices) -> None:
    values = list(part.values)
    if not values:
        raise SweepError(f"{what}: {key!r} has no values to choose from")
    for i, value in enumerate(values):
        if value is not None and not isinstance(value, bool | int | float | str):
            raise SweepError(f"{what}: {key!r} may be None, a number or text, not {value!r}")
        if value == AUTO and key.removeprefix("train.") in Means._fields:
            raise SweepError(f"{what}: {key!r}: 'auto' is decided when a sweep is planned; name what it may become")
        if value in values[:i]:
            raise SweepError(f"{what}: {key!r} names {value!r} twice")


def _check_range(what: str, key: str, part: Range) -> None:
    where = f"{what}: {key!r} from {part.low!r} to {part.high!r}"
    if not _numbers(key) & {int, float}:
        raise SweepError(f"{where}: this key takes no numbers; use Choices")
    if not (math.isfinite(part.low) and math.isfinite(part.high)):
        raise SweepError(f"{where}: both ends must be finite")
    if part.low >= part.high:
        raise SweepError(f"{where}: the bounds are {'equal' if part.low == part.high else 'reversed'}")
    if part.log and part.low <= 0:
        raise SweepError(f"{where}: a logarithmic range must begin above 0")
    if is_whole(key) and (part.low != int(part.low) or part.high != int(part.high)):
        raise SweepError(f"{where}: this key takes whole numbers")


def _numbers(key: str) -> set[Any]:
    kind = field_type(RunConfig, key)
    return set(get_args(kind)) or {kind}


def is_whole(key: str) -> bool:
    """Whether a key takes whole numbers only."""
    return float not in _numbers(key)
