"""Find the `Sweep` or the `Search` behind a name or a path."""

import contextlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from pydantic import ValidationError

from lmcore.config import ConfigError, did_you_mean, explain
from results.files import safe_name
from sweeps.spec import Search, Sweep, SweepError

EXPERIMENTS = "experiments"


Question = TypeVar("Question", Sweep, Search)


@dataclass(frozen=True)
class Found(Generic[Question]):
    """A sweep or a search, what it is called and the file that defines it."""

    name: str
    sweep: Question
    path: Path
    sha256: str


Loaded = Found[Sweep]


def known() -> list[str]:
    """Names of the experiments that come with the project."""
    package = importlib.util.find_spec(EXPERIMENTS)
    places = list(package.submodule_search_locations or []) if package else []
    return sorted(m.name for m in pkgutil.iter_modules(places) if m.ispkg)


def load(name_or_path: str) -> Loaded:
    """A built-in experiment by name, or a sweep file (or its folder) by path. Raises SweepError."""
    return _load(name_or_path, Sweep)


def load_search(name_or_path: str) -> Found[Search]:
    """Likewise what the file's function `search()` returns. Raises SweepError."""
    return _load(name_or_path, Search)


def _load(name_or_path: str, kind: type[Question]) -> Found[Question]:
    if not name_or_path:
        raise SweepError(f"name a sweep, one of {', '.join(known())}, or the path of a sweep file")
    if is_path(name_or_path):
        file = _file(name_or_path)
        if not file.is_file():
            raise SweepError(f"no sweep file at {file}")
        name = file.parent.resolve().name if file.name == "sweep.py" else file.stem
        return _build(safe_name(name), importlib.util.spec_from_file_location(f"lab_sweep_{name}", file), kind)
    if name_or_path not in known():
        raise SweepError(
            f"unknown sweep {name_or_path!r}{did_you_mean(name_or_path, known())}; "
            f"known: {', '.join(known())}; or give the path of a sweep file"
        )
    return _build(name_or_path, importlib.util.find_spec(f"{EXPERIMENTS}.{name_or_path}.sweep"), kind)


def is_path(name_or_path: str) -> bool:
    """Whether a sweep of that name is meant as a file, or a folder with a sweep.py."""
    return name_or_path.endswith(".py") or "/" in name_or_path or Path(name_or_path).is_dir()


def sweep_file(name_or_path: str) -> bool:
    """Whether this is the path of a sweep file that is there."""
    return is_path(name_or_path) and _file(name_or_path).is_file()


def _file(name_or_path: str) -> Path:
    path = Path(name_or_path)
    return path / "sweep.py" if path.is_dir() else path


def whole_path(path: Path) -> Path:
    """From the root and without `..`; a link keeps its name, after which a sweep is called."""
    return path.resolve() if path.is_dir() else path.parent.resolve() / path.name


def _build(name: str, spec: ModuleSpec | None, kind: type[Question]) -> Found[Question]:
    if spec is None or spec.origin is None or spec.loader is None:
        raise SweepError(f"experiment {name!r} has no sweep.py")
    module = importlib.util.module_from_spec(spec)
    path = Path(spec.origin)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for what was asked
            spec.loader.exec_module(module)
            made = _maker(module, path, kind)()
    except (SweepError, ConfigError):
        raise
    except ValidationError as error:
        raise SweepError(f"{path}: {explain(error, [field.name for field in fields(kind)])}") from None
    except (
        Exception,
        SystemExit,
    ) as error:  # the user's file: one line with its place
        raise SweepError(f"{path}: {_where(error, path)}{type(error).__name__}: {error}") from error
    if not isinstance(made, kind):
        what = kind.__name__
        raise SweepError(f"{path}: {what.lower()}() must return a sweeps.spec.{what}, not {type(made).__name__}")
    return Found(name, made, path, sha256(path.read_bytes()).hexdigest())


def _maker(module: ModuleType, path: Path, kind: type[Question]) -> Callable[[], object]:
    maker = getattr(module, kind.__name__.lower(), None)
    if not callable(maker):
        raise SweepError(f"{path}: define a function `{kind.__name__.lower()}()` that returns a {kind.__name__}")
    return maker  # type: ignore[no-any-return]


def _where(error: BaseException, path: Path) -> str:
    """'line 12: ' for the innermost frame inside the user's file."""
    trace, line = error.__traceback__, None
    while trace:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"line {line}: " if line else ""
