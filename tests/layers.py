"""The laws of the house: what each module of shoal may import, call and measure, read from its source.

`violations` takes sources as text, so that tests/test_layers.py can also show that a broken law is found.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.core_doors import DOORS_OF_THE_CORE

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60  # without the docstring; 50 is wanted

# A room may import rooms of lower floors, and itself. Rooms of one floor do not know each other.
FLOORS = {
    "errors": -1,
    "hints": 0,
    "figures": 0,
    "arguments": 1,
    "lazy_names": 1,
    "plugins": 1,
    "version": 1,
    "order": 2,
    "index": 2,
    "formats": 3,
    "storage": 3,
    "quality": 3,
    "peers": 3,
    "processes": 4,
    "stats": 4,
    "testing": 4,
    "indexing": 5,
    "reading": 6,
    "pipeline": 7,
    "stream": 8,
    "verify": 9,
    "pack": 9,  # above the stream: repacking reads through it; design/packing.md
    "live": 9,
    "integrations": 9,
    "tables": 9,
    "tools": 10,
    "watch": 11,  # above the tools: a page of a run is drawn like other pages
    "(door)": 12,  # single modules beside it, like shoal.orders, through which the public reaches a room
    "(face)": 13,  # shoal itself
    "cli": 14,
}

# The core: it knows none of the rooms that build on it, so that each of them can be taken away or brought by others.
CORE = frozenset(
    ("order", "index", "storage", "formats", "processes", "stats", "indexing", "reading", "pipeline", "stream")
)
AROUND_THE_CORE = frozenset(
    ("peers", "tools", "pack", "verify", "live", "integrations", "testing", "watch", "cli", "tables")
)

# Rooms that the public enters themselves, and whose own files import what is asked for, like the face.
ALSO_FACES = frozenset(("shoal.pack", "shoal.pack.ray", "shoal.pack.spark", "shoal.formats", "shoal.watch"))

# Libraries that may be imported at all, and by whom; design/dependencies.md says why each is there.
LIBRARIES = {
    "numpy": ("shoal",),
    "matplotlib": ("shoal.tools.reports.rendering",),
    "torch": (
        "shoal.integrations",
        "shoal.pipeline.tensors",
        "shoal.storage.objects.torch_store",
        "shoal.formats.decoding.images",
        "shoal.formats.decoding.pickles",
    ),
    "torchdata": ("shoal.integrations",),
    "torchvision": ("shoal.integrations.torch.jpegs_on_accelerator",),
    "jax": ("shoal.integrations",),
    "lightning": ("shoal.integrations",),
    "accelerate": ("shoal.integrations",),
    "transformers": ("shoal.integrations",),
    "datasets": ("shoal.integrations",),
    "obstore": ("shoal.storage",),
    "pycurl": ("shoal.storage.http",),
    "boto3": ("shoal.storage",),
    "fsspec": ("shoal.storage", "shoal.tables.hub"),
    "pyarrow": ("shoal.formats", "shoal.integrations", "shoal.tables"),
    "deltalake": ("shoal.tables",),
    "pyiceberg": ("shoal.tables",),
    "hudi": ("shoal.tables",),
    "PIL": ("shoal.formats", "shoal.stream"),
    "simplejpeg": ("shoal.formats.decoding.images",),
    "soundfile": ("shoal.formats.decoding.audio_and_video",),
    "av": ("shoal.formats.decoding.audio_and_video", "shoal.formats.decoding.video"),
    "msgpack": ("shoal.formats",),
    "msgspec": ("shoal.formats.decoding.json_text",),
    "cbor2": ("shoal.formats",),
    "xxhash": ("shoal.formats.metadata.manifests",),
    "yaml": ("shoal.formats", "shoal.tables.hub"),
    "zstandard": ("shoal.formats",),
    "tokenizers": ("shoal.pipeline.stages.tokens.tokenizing",),
    "jinja2": ("shoal.pipeline.stages.conversations.jinja_templates",),
    "google_crc32c": ("shoal.formats",),
    "backports": ("shoal.formats",),
    "lance": ("shoal.tables",),
    "huggingface_hub": ("shoal.tables",),
    "ray": ("shoal.pack", "shoal.cli.options.engine_options"),
    "pyspark": ("shoal.pack", "shoal.cli.options.engine_options"),
}

# Modules that are not Python, and may be missing: each is asked for by one module, which says what is done without it.
COMPILED = {
    "shoal.formats._cutting": "shoal.formats.compiled_cutting",
    "shoal.storage.http._exchange": "shoal.storage.http.exchange",
}

# The rooms in which threads run; a retry waits, and many objects are looked at side by side.
_WITH_THREADS = (
    "shoal.processes",
    "shoal.indexing",
    "shoal.reading",
    "shoal.pipeline",
    "shoal.stream",
    "shoal.verify",
    "shoal.live",
    "shoal.testing",
    "shoal.watch",
    "shoal.storage.retry",
    "shoal.storage.http.curl_client",
    "shoal.storage.stat_many",
    "shoal.storage.passing_bytes",
)
_WITH_PROCESSES = ("shoal.processes", "shoal.indexing", "shoal.stream", "shoal.pack")

# Parts of the standard library that belong to some rooms.
RESERVED_MODULES = {
    "threading": _WITH_THREADS,
    "_thread": _WITH_THREADS,
    "concurrent": _WITH_THREADS,
    "queue": _WITH_THREADS,
    "subprocess": _WITH_PROCESSES,
    "multiprocessing": _WITH_PROCESSES,
    # Coroutine functions of users run there; storage uses none, because asynchronous clients aborted at exit.
    "asyncio": ("shoal.processes.event_loop",),
    "socket": (
        "shoal.storage",
        "shoal.stream.workers.shared_batches",
        "shoal.testing",
        "shoal.watch.page_server",
        "shoal.cli.options.engine_options",
    ),
    "ssl": ("shoal.storage",),
    "http": ("shoal.storage", "shoal.testing", "shoal.watch"),
    "urllib.request": ("shoal.storage",),
    "mmap": ("shoal.storage", "shoal.stream.workers.shared_batches"),
    "tempfile": ("shoal.storage", "shoal.cli"),
    "fcntl": ("shoal.storage",),
    "random": ("shoal.order.seeds", "shoal.peers", "shoal.integrations.torch.torch_in_worker"),
    "numpy.random": ("shoal.order.seeds", "shoal.peers", "shoal.integrations.torch.torch_in_worker"),
    "importlib.import_module": (
        "shoal.lazy_names",
        "shoal.plugins.doors",
        "shoal.cli.main",
        "shoal.cli.options.engine_options",
        "shoal.cli.options.source_options",
        "shoal.formats.compressed.codecs",
        "shoal.stream.dataset",
    ),
}

# A process that starts reads its work from a pipe.
MAY_OPEN_FILES = ("shoal.storage", "shoal.cli", "shoal.processes.light_fork_server")
# The scan worker is a process of its own, whose standard output is its line to the parent.
MAY_USE_TERMINAL = ("shoal.cli", "shoal.stats.live_line", "shoal.indexing.scan.scan_worker")
FILE_CALLS = {
    "os": {"open", "fdopen", "read", "readv", "pread", "preadv", "write", "writev", "pwrite", "pwritev"},
    "io": {"open", "open_code", "FileIO"},
    "numpy": {"load", "save", "savez", "savez_compressed", "memmap", "fromfile", "loadtxt", "savetxt", "genfromtxt"},
}
PATH_CALLS = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}

MAX_MODULES_IN_A_FOLDER = 14
MAX_FOLDERS_IN_A_FOLDER = 12
# Each format has both, side by side.
NAMES_IN_EVERY_FORMAT = {"reader", "writer"}

ODD_OPENINGS = ("What", "Whether", "How", "Which", "Where", "Who", "The same", "As")

# Kinds of epochs, datasets, stages and units that a wing adds, and a word of the files that may ask for them: the core
# calls what they have in common (design/way.md).
KINDS_OF_WINGS = {
    "ResolvedMixture": "mix",
    "OpenedMixture": "mix",
    "MixRequest": "mix",
    "BySource": "source",
    "ResolvedGrowing": "growing",
    "ResolvedSegments": "growing",
    "GrowingRequest": "growing",
    "ResolvedSequences": "sequence",
    "SequenceRequest": "sequence",
    "FilledBatches": "refill",
    "SlicedUnits": "spill",
    "SpilledRecords": "spill",
}

NAMED_TUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}  # public all the same

VAGUE_NAMES = {"utils", "util", "base", "core", "common", "helpers", "helper", "misc"}


@dataclass(frozen=True)
class Import:
    """One imported thing, by its full dotted name, and whether the import stands at the top of the module."""

    target: str
    line: int
    at_top: bool


def read_sources(package: Path) -> dict[str, str]:
    """The sources of a package by dotted module name."""
    sources = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name] = path.read_text(encoding="utf-8")
    return sources


def violations(sources: Mapping[str, str]) -> list[str]:
    """Every broken law, as "module:line: what is wrong"; the sources are those of the whole package by module name."""
    found = []
    graph: dict[str, set[str]] = {}
    packages = {name.rpartition(".")[0] for name in sources} | {
        name for name in sources if room_of(name, sources) == name.partition(".")[2]
    }
    trees = {name: ast.parse(source, name) for name, source in sources.items()}
    private = {name: private_members(tree) for name, tree in trees.items()}
    ours = set().union(*private.values())
    for name, source in sources.items():
        tree = trees[name]
        imports = list(imports_of(tree, name, is_package=name in packages))
        graph[name] = {own for item in imports if (own := own_module(item.target, sources)) is not None}
        for line, text in sorted(
            {
                *name_violations(name),
                *import_violations(name, imports, sources),
                *call_violations(name, tree),
                *size_violations(source, tree),
                *docstring_violations(tree),
                *privacy_violations(tree, ours - private[name]),
                *kind_violations(name, tree),
            }
        ):
            found.append(f"{name}:{line}: {text}")
    found += folder_violations(sources)
    return found + [f"{circle[0]}:1: import circle {' -> '.join(circle)}" for circle in circles(graph)]


def room_of(module: str, sources: Mapping[str, str]) -> str:
    """The room of one of our modules."""
    parts = module.split(".")
    if len(parts) == 1:
        return "(face)"
    if parts[1] == "__main__":
        return "cli"
    if len(parts) == 2 and parts[1] not in FLOORS and not any(name.startswith(f"{module}.") for name in sources):
        return "(door)"
    return parts[1]


def own_module(target: str, sources: Mapping[str, str]) -> str | None:
    """The module of ours that holds ``target`` (a module, or a name inside one), or None for foreign names."""
    while target and target not in COMPILED:
        if target in sources:
            return target
        target = target.rpartition(".")[0]
    return None


def imports_of(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[Import]:
    """Everything that a module imports, wherever the import stands."""
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in top)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + is_package]
                origin = ".".join([*above, *([origin] if origin else [])])
            for alias in node.names:
                yield Import(f"{origin}.{alias.name}", node.lineno, id(node) in top)


def name_violations(module: str) -> Iterator[tuple[int, str]]:
    """A name should say what is inside."""
    for part in module.split("."):
        if part in VAGUE_NAMES:
            yield 1, f"{part!r} says nothing about what is inside"


def folder_violations(sources: Mapping[str, str]) -> Iterator[str]:
    """A floor plan can be held in the head: few entries in a folder, and no name of a file twice in the house."""
    folders = {name for name in sources if any(other.startswith(f"{name}.") for other in sources)}
    for folder in sorted(folders):
        inside = {name for name in sources if name.rpartition(".")[0] == folder}
        num_folders = len(inside & folders)
        if len(inside) - num_folders > MAX_MODULES_IN_A_FOLDER:
            yield f"{folder}:1: has {len(inside) - num_folders} modules; {MAX_MODULES_IN_A_FOLDER} are the ceiling"
        if num_folders > MAX_FOLDERS_IN_A_FOLDER and folder.count("."):
            yield f"{folder}:1: has {num_folders} folders; {MAX_FOLDERS_IN_A_FOLDER} are the ceiling"
    seen: dict[str, str] = {}
    for name in sorted(set(sources) - folders):
        last = name.rpartition(".")[2]
        if last in seen and last not in NAMES_IN_EVERY_FORMAT and name.count(".") > 1 and seen[last].count(".") > 1:
            yield f"{name}:1: {last!r} is the name of {seen[last]}, too"
        seen.setdefault(last, name)


def import_violations(module: str, imports: list[Import], sources: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """The arrows between rooms, and who may import what from outside."""
    room = room_of(module, sources)
    if room not in FLOORS:
        yield 1, f"{room!r} is no room of the house"
        return
    for item in imports:
        if item.target in COMPILED:
            if module != COMPILED[item.target]:
                yield item.line, f"only {COMPILED[item.target]} imports {item.target}"
            continue
        own = own_module(item.target, sources)
        if own is None:
            yield from foreign_violations(module, item)
            continue
        other = room_of(own, sources)
        if other not in FLOORS:
            continue  # said at that module
        if other == "(face)" and FLOORS[room] <= FLOORS["(face)"]:
            yield item.line, "imports the face of the package from inside"
        elif room in CORE and other in AROUND_THE_CORE:
            yield item.line, f"{room} is of the core, and {other} builds on it"
        elif room in AROUND_THE_CORE and other in CORE and room not in _rooms_at_door(own):
            yield item.line, f"{own} is no door of the core to {room} (tests/core_doors.py)"
        elif other != room and FLOORS[other] >= FLOORS[room]:
            yield item.line, f"{room} must not import {other}"
        if not item.at_top and room not in {"(face)", "(door)"} and module not in ALSO_FACES:
            yield item.line, f"imports {own} elsewhere than at the top of the module"


def _rooms_at_door(module: str) -> list[str]:
    """The rooms around the core that may import a module of the core."""
    return DOORS_OF_THE_CORE.get(module.partition(".")[2], "").split()


def foreign_violations(module: str, item: Import) -> Iterator[tuple[int, str]]:
    """Libraries only where they belong, and the reserved parts of the standard library."""
    for reserved, owners in RESERVED_MODULES.items():
        if within(item.target, reserved) and not any(within(module, owner) for owner in owners):
            yield item.line, f"{reserved} belongs to {', '.join(owners)}"
    library = item.target.partition(".")[0]
    if library in sys.stdlib_module_names:
        return
    if library not in LIBRARIES:
        yield item.line, f"{library} is not among the libraries of the house"
    elif not any(within(module, owner) for owner in LIBRARIES[library]):
        yield item.line, f"{library} belongs to {', '.join(LIBRARIES[library])}"
    elif room_is_ground_order(module) and library != "numpy":
        yield item.line, "order imports numpy and the standard library only"


def room_is_ground_order(module: str) -> bool:
    """Whether the module belongs to the room that must stay runnable with numpy alone."""
    return within(module, "shoal.order")


def call_violations(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Printing, opening files, numpy's generators and late imports, where they do not belong."""
    aliases = aliases_of(tree)
    bound = bound_names(tree)
    may_open = any(within(module, owner) for owner in MAY_OPEN_FILES)
    uses_paths = any(within(target, "pathlib") for target in aliases.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node, aliases)
            for stream in ("sys.stdout", "sys.stderr"):
                if within(name, stream) and not any(within(module, owner) for owner in MAY_USE_TERMINAL):
                    yield node.lineno, f"{stream} belongs to {', '.join(MAY_USE_TERMINAL)}"
            if name in {"numpy.random", "importlib.import_module"}:
                owners = RESERVED_MODULES[name]
                if not any(within(module, owner) for owner in owners):
                    yield node.lineno, f"{name} belongs to {', '.join(owners)}"
        elif isinstance(node, ast.Call):
            name = dotted(node.func, aliases)
            if name == "print" and module != "shoal.cli.output":
                yield node.lineno, "prints; only shoal.cli.output does"
            if name == "__import__" and "__import__" not in bound:
                yield node.lineno, "imports in a way that cannot be read"
            if not may_open and opens_file(node.func, name, bound, uses_paths=uses_paths):
                yield node.lineno, f"{name or ast.unparse(node.func)}() reads or writes a file; only storage does"


def opens_file(function: ast.expr, name: str, bound: set[str], *, uses_paths: bool) -> bool:
    """Whether a call opens, reads or writes a file, as far as its name tells."""
    if name == "open":
        return "open" not in bound
    origin, _, attribute = name.rpartition(".")
    if attribute in FILE_CALLS.get(origin, ()):
        return True
    # Methods are told by their names, and only where paths are in use: a store may well have a method "open".
    return uses_paths and isinstance(function, ast.Attribute) and function.attr in PATH_CALLS


def aliases_of(tree: ast.Module) -> dict[str, str]:
    """What the names bound by imports stand for: {"np": "numpy", "pread": "os.pread"}."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return aliases


def bound_names(tree: ast.Module) -> set[str]:
    """Names that a module gives a meaning of its own at its top: definitions, and imports from our own package."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return names | {name for name, target in aliases_of(tree).items() if within(target, "shoal")}


def dotted(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """The full name of ``a.b.c`` with the imported names resolved, or "" if it is no such thing."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        origin = dotted(node.value, aliases)
        return f"{origin}.{node.attr}" if origin else ""
    return ""


def docstring_violations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings that open with a question word, which says what is asked and not what is there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            opening = next((word for word in ODD_OPENINGS if text.startswith(f"{word} ")), None)
            if opening is not None:
                line = getattr(node, "lineno", 1)
                yield line, f"a docstring opens with {opening!r}; begin with a verb or a noun that stands alone"


def private_members(tree: ast.Module) -> set[str]:
    """The private methods and attributes of a module's classes: a dataset, say, is the business of its module alone."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for inside in node.body:
                target = inside.target if isinstance(inside, ast.AnnAssign) else None
                found.add(getattr(inside, "name", "") or (target.id if isinstance(target, ast.Name) else ""))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def privacy_violations(tree: ast.Module, foreign: set[str]) -> Iterator[tuple[int, str]]:
    """Private members of another module's classes, reached on anything but oneself."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in foreign
            and ast.unparse(node.value) not in {"self", "cls", "super()"}
        ):
            yield node.lineno, f"reaches {ast.unparse(node)}, which is private to another module"


def is_private(name: str) -> bool:
    """Whether a name is private to a class or a module."""
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE_METHODS


def size_violations(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The ceilings of files and functions; a docstring does not count as the function's."""
    num_lines = len(source.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield 1, f"has {num_lines} lines; {MAX_FILE_LINES} are the ceiling"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                docstring = node.body[0]
                num_lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
            if num_lines > MAX_FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {num_lines} lines; {MAX_FUNCTION_LINES} are the ceiling"


def kind_violations(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each question of the core for a kind that a wing adds."""
    if name.split(".")[1:2] and name.split(".")[1] not in CORE:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
            for kind in sorted(asked & KINDS_OF_WINGS.keys()):
                if KINDS_OF_WINGS[kind] not in name:
                    yield node.lineno, f"asks for {kind}: call what all kinds have in common"


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """One path for each import circle, beginning and ending at the same module."""
    found, finished = [], set()

    def walk(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in finished:
            for other in sorted(graph.get(module, ())):
                walk(other, [*path, module])
            finished.add(module)

    for module in sorted(graph):
        walk(module, [])
    return found


def within(name: str, prefix: str) -> bool:
    """Whether a dotted name is ``prefix`` or lies below it."""
    return name == prefix or name.startswith(f"{prefix}.")
