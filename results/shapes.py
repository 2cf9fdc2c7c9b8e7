"""What a JSON value from a file has to look like before anybody works with it: a damaged one is refused by name.

A shape is a type (`int`: what a BIGINT holds, `float`: any finite number), a union of types, a range, a pattern of
texts, [shape] for a list, or {name: shape} for an object. A name that ends in "?" may be absent, `...` stands for any
name, and names that the shape does not have are nobody's business.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

Shape = Any

RUN_ID = re.compile(r"[0-9a-f]{12}")


def integer(value: Any) -> int | None:
    """`value` if it is an integer that a BIGINT holds, else None. True and False are none."""
    fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return value if fits else None


def count(value: Any) -> int | None:
    """Likewise if it is a number of steps, attempts or bytes: not below 0."""
    found = integer(value)
    return found if found is not None and found >= 0 else None


def digits(text: str) -> int | None:
    """The number that ASCII digits write, if a BIGINT holds it, else None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def misfit(value: Any, shape: Shape, name: str = "") -> str | None:
    """The name of the first part of `value` that is not as `shape` says; None if all of it is."""
    if isinstance(shape, list | dict):
        if not isinstance(value, type(shape)):
            return name
        return next((bad for part in _parts(value, shape, name) if (bad := misfit(*part))), None)
    return None if _fits(value, shape) else name


def _parts(value: Any, shape: Shape, name: str) -> Iterator[tuple[Any, Shape, str]]:
    if isinstance(shape, list):
        yield from ((item, shape[0], f"{name}[{place}]") for place, item in enumerate(value))
        return
    for key, wanted in shape.items():
        if key is ...:
            yield from ((item, wanted, f"{name}.{other}") for other, item in value.items())
        elif key.endswith("?"):
            if key[:-1] in value:
                yield value[key[:-1]], wanted, f"{name}.{key[:-1]}"
        else:
            yield value.get(key, _ABSENT), wanted, f"{name}.{key}"


_ABSENT = object()


def _fits(value: Any, shape: Shape) -> bool:
    if isinstance(shape, re.Pattern):
        return isinstance(value, str) and shape.fullmatch(value) is not None
    if shape is int:
        return integer(value) is not None
    if isinstance(shape, range):
        return isinstance(value, int) and not isinstance(value, bool) and value in shape
    if shape is float:
        return integer(value) is not None or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, shape)
