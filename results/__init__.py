"""The record: run folders, states, ingest, and the DuckDB database made from them.

`results.open` and `results.Home` load on first use, so `import results` costs nothing and `results.record` never pulls
in DuckDB. `results.ingest` is always the module; its function is `results.ingest.ingest`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from results.home import Home
    from results.query import open

__all__ = ["Home", "open"]


def __getattr__(name: str) -> Any:
    if name == "Home":
        return import_module("results.home").Home
    if name == "open":
        return import_module("results.query").open
    if name == "ingest":
        return import_module("results.ingest")
    raise AttributeError(f"module 'results' has no attribute {name!r}")
