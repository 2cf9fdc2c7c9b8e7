"""The policies of docs/design.md, held by walking the source: who imports whom, sizes, links."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("cli", "experiments", "sweeps", "analysis", "results", "lmcore")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70

# Only these modules may import the package (at run time; for a type checker anyone may).
OWNERS = {
    "transformers": ("lmcore.hf",),
    "submitit": ("sweeps.launch",),
    "optuna": ("sweeps.search",),
    "duckdb": ("results",),
}
# These neither import torch nor load a module of ours that does.
TORCH = ("torch", "safetensors.torch")
WITHOUT_TORCH = (
    "lmcore.config",
    "lmcore.count",
    "lmcore.memory",
    "lmcore.resize",
    "lmcore.presets",
    "results",
    "analysis",
)

# Inside lmcore a module imports only from lines above its own.
LMCORE_LAYERS = (
    ("typed",),
    ("config",),
    ("count", "resize", "init", "schedule", "norm", "position", "mask", "cache", "switches", "telemetry"),
    ("attention", "ffn", "memory", "auto"),
    ("block",),
    ("model",),
    ("hf_rules",),
    ("hf_families",),
    ("update", "evaluate", "generate", "hf"),
    ("train",),
)
KNOW_ONLY_CONFIG = ("count", "resize", "init", "schedule")
DO_NOT_KNOW_THE_MODEL = ("data", "corpus", "tokenizer", "optim", "checkpoint", "telemetry", "evaluate")

HEAVY = {"torch", "pandas", "duckdb", "scipy", "matplotlib", "seaborn", "optuna", "submitit", "transformers"}
HELP = """
import sys
sys.argv = ["lab", "--help"]
import cli
try:
    cli.main()
except SystemExit as end:
    if end.code:
        raise
print("\\n", *sorted(sys.modules), sep="\\n")
"""


class Import(NamedTuple):
    """One import statement's target; `at_load` when it runs as soon as the module is imported."""

    target: str
    at_load: bool


@cache
def sources() -> dict[str, Path]:
    """Dotted name -> file, for every module of the rooms."""
    found = {}
    for room in ROOMS:
        for path in [ROOT / f"{room}.py", *(ROOT / room).rglob("*.py")]:
            if path.exists():
                parts = path.relative_to(ROOT).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    return ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def runtime_nodes(node: ast.AST, at_load: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes that can run, each with whether it runs when the module is loaded."""
    yield node, at_load
    at_load = at_load and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    children = node.orelse if is_type_checking(node) and isinstance(node, ast.If) else ast.iter_child_nodes(node)
    for child in children:
        yield from runtime_nodes(child, at_load)


def targets(module: str, node: ast.AST) -> list[str]:
    """What one import statement names, down to our module where `from room import module` says one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        package = module if sources()[module].name == "__init__.py" else module.rpartition(".")[0]
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    # `from safetensors import torch` names a module as well, so outside our rooms the longer name is kept, too.
    longer = [f"{base}.{alias.name}" for alias in node.names]
    if base.split(".")[0] in ROOMS:
        return [name if name in sources() else base for name in longer]
    return [base, *longer]


@cache
def imports(module: str) -> tuple[Import, ...]:
    tree = ast.parse(sources()[module].read_text())
    return tuple(Import(name, at_load) for node, at_load in runtime_nodes(tree) for name in targets(module, node))


def our_imports(module: str) -> set[str]:
    return {i.target for i in imports(module) if i.target.split(".")[0] in ROOMS} - {module}


def loaded_with(module: str) -> set[str]:
    """Modules of ours that come with importing `module`: those it imports at load, and the packages around each."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in sources():
            continue
        seen.add(name)
        waiting += [i.target for i in imports(name) if i.at_load]
        waiting.append(name.rpartition(".")[0])
    return seen


def design_table() -> dict[str, tuple[str, ...]]:
    """Room -> what it may import, from the table in docs/design.md."""
    table = {}
    for line in (ROOT / "docs" / "design.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        room = cells[0].strip("`").removesuffix("/").removesuffix(".py")
        if len(cells) == 3 and room in ROOMS:
            table[room] = ROOMS if cells[2] == "everything below" else tuple(re.findall(r"`([\w.]+)`", cells[2]))
    return table


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def all_files(pattern: str) -> list[Path]:
    """Files of the project, without what is built or downloaded beside them."""
    folders = [ROOT / name for name in (*ROOMS, "benchmarks", "docs", "tests")]
    return sorted([*ROOT.glob(pattern), *(path for folder in folders for path in folder.rglob(pattern))])


def our_code() -> list[Path]:
    return [path for path in all_files("*.py") if not path.is_relative_to(ROOT / "tests")]


def test_rooms_import_only_what_the_design_allows() -> None:
    table = design_table()
    assert set(table) == set(ROOMS), "the table in docs/design.md names every room"
    wrong = []
    for module in sources():
        room = module.split(".")[0]
        for target in our_imports(module):
            if not any(within(target, allowed) for allowed in (room, *table[room])):
                wrong.append(f"{module} imports {target}")
    assert not wrong


def test_lmcore_is_layered() -> None:
    rank = {f"lmcore.{name}": height for height, layer in enumerate(LMCORE_LAYERS) for name in layer}
    wrong = [
        f"{module} imports {target}"
        for module in sources()
        for target in our_imports(module)
        if module in rank and target in rank and rank[target] >= rank[module]
    ]
    assert not wrong


def test_parts_of_lmcore_do_not_know_the_model() -> None:
    model = {f"lmcore.{name}" for name in ("norm", "position", "attention", "ffn", "block", "model", "init", "train")}
    wrong = [
        f"{module} imports {target}"
        for module in sources()
        for target in our_imports(module)
        if (module.removeprefix("lmcore.") in DO_NOT_KNOW_THE_MODEL and target in model)
        or (module.removeprefix("lmcore.") in KNOW_ONLY_CONFIG and target != "lmcore.config")
    ]
    assert not wrong


def test_each_large_package_has_one_owner() -> None:
    wrong = [
        f"{module} imports {package}"
        for package, owners in OWNERS.items()
        for module in sources()
        if not any(within(module, owner) or module.startswith(f"{owner}_") for owner in owners)
        and any(within(i.target, package) for i in imports(module))
    ]
    assert not wrong


def test_torch_stays_out_of_config_accounting_record_and_analysis() -> None:
    wrong = []
    for module in sources():
        if not any(within(module, name) for name in WITHOUT_TORCH):
            continue
        # In the module itself a late import counts as well; in what it loads only what runs at load.
        wrong += [f"{module} imports {i.target}" for i in imports(module) if any(within(i.target, t) for t in TORCH)]
        for other in loaded_with(module) - {module}:
            if any(i.at_load and within(i.target, t) for i in imports(other) for t in TORCH):
                wrong.append(f"{module} loads {other}, which imports torch")
    assert not wrong


def test_no_import_circles() -> None:
    modules = {module: our_imports(module) for module in sources()}
    rooms: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, found in modules.items():
        room = module.split(".")[0]
        rooms[room] |= {target.split(".")[0] for target in found} - {room}
    assert circle(rooms) == []
    assert circle(modules) == []


def test_files_and_functions_are_short() -> None:
    wrong = []
    for path in our_code():
        text = path.read_text()
        if (length := len(text.splitlines())) > MAX_FILE_LINES:
            wrong.append(f"{path.relative_to(ROOT)}: {length} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    wrong.append(f"{path.relative_to(ROOT)}: {node.name} has {length} lines")
    assert not wrong


def test_nothing_is_left_unimplemented() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in our_code()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == "NotImplementedError"
    ]
    assert not wrong


def test_relative_links_in_markdown_point_at_files() -> None:
    wrong = []
    for path in all_files("*.md"):
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(<?([^)>\s]+)", prose):
            target = link.split("#")[0]
            if target and not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                wrong.append(f"{path.relative_to(ROOT)}: {link}")
    assert not wrong


def test_help_loads_nothing_heavy() -> None:
    command = [sys.executable, "-c", HELP]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    assert not HEAVY & set(done.stdout.split())
