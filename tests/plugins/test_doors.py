"""Registered names of packages: looked up on demand, and a package that is broken breaks nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.plugins.packages import GUIDES, install, write_metadata, write_package
from tests.samples import write_sample_data

import shoal
from shoal.cli.main import main
from shoal.errors import ShoalError, SourceError, UsageError
from shoal.formats.format_registry import format_named, format_of
from shoal.order.registry import ORDERS
from shoal.pack.from_shards.text_sources import documents_format
from shoal.plugins.doors import Door, loaded_entry, names
from shoal.storage.store_of_url import open_store

Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Installs packages for this process, each with a module of some code."""
    monkeypatch.syspath_prepend(tmp_path / "target")
    monkeypatch.setattr("shoal.plugins.doors._loaded", {})

    def write(name: str, groups: dict[str, dict[str, str]], code: str = "") -> None:
        (tmp_path / "target").mkdir(exist_ok=True)
        (tmp_path / "target" / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
        write_metadata(tmp_path / "target", name, "2.5", groups)

    return write


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    directory = write_sample_data(tmp_path / "home")
    monkeypatch.chdir(directory)
    return directory


def opened() -> shoal.Dataset:
    return shoal.open("data/train-*.tar")


def called(*words: str) -> Callable[[str, pytest.CaptureFixture[str]], NoReturn]:
    def call(name: str, capsys: pytest.CaptureFixture[str]) -> NoReturn:
        try:
            code: object = main([word.format(name=name) for word in words])
        except SystemExit as error:  # of argparse
            code = error.code
        assert code == 2
        raise UsageError(capsys.readouterr().err)

    return call


ASK: list[tuple[str, Callable[[str, Any], object]]] = [
    ("shoal.formats", lambda name, _: shoal.open("data/train-*.tar", format=name)),
    ("shoal.formats", called("info", "data/train-*.tar", "--format", "{name}.gz")),
    ("shoal.orders", lambda name, _: opened().shuffle(name)),
    ("shoal.orders", called("audit", "data/train-*.tar", "--order", "{name}(chunks=3)")),
    ("shoal.stores", lambda name, _: shoal.open(f"{name}://there/a.tar")),
    ("shoal.tables", lambda name, _: shoal.open(f"{name}://there")),
    ("shoal.decoders", lambda name, _: opened().decode(name)),
    ("shoal.decoders", called("head", "data/train-*.tar", "--decode", "{name}")),
    ("shoal.reporters", lambda name, _: next(iter(opened().reading(progress=name)))),
    ("shoal.commands", called("{name}")),
    ("shoal.engines", called("repack", "data/train-*.tar", "there", "--engine", "{name}")),
]
every_group = pytest.mark.parametrize(("group", "ask"), ASK)


@every_group
@pytest.mark.parametrize(
    ("value", "code", "cause"),
    [
        ("gone_one:Thing", "", "ModuleNotFoundError: No module named 'gone_one'"),
        ("broken_one:Thing", "", "AttributeError: module 'broken_one' has no attribute 'Thing'"),
        ("broken_one:Thing", "import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("broken_one:Thing", "1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_broken_package_is_named_with_entry_point_and_cause(
    group: str, ask: Any, value: str, code: str, cause: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    package("broken_one", {group: {"odd": value}}, code)
    with pytest.raises(UsageError) as caught:
        ask("odd", capsys)
    said = str(caught.value)
    for part in ("'odd'", group, "broken_one 2.5", value, cause, "upgrade or uninstall"):
        assert part in said
    assert isinstance(caught.value.__cause__, Exception) or not caught.value.hint


@every_group
@pytest.mark.usefixtures("home")
def test_what_is_brought_must_be_what_it_is_asked_for(
    group: str, ask: Any, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    package("broken_one", {group: {"odd": "broken_one:thing"}}, "thing = 5")
    with pytest.raises(UsageError, match=r"broken_one:thing.*(cannot be called|has no add_arguments, run)"):
        ask("odd", capsys)


MAKERS = [
    ("def thing(size=0, chunks=1): return 5", "int has no "),
    ("def thing(size=0, chunks=1): 1 / 0", "ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize(("code", "cause"), MAKERS)
@pytest.mark.parametrize(("group", "ask"), [each for each in ASK if each[0] not in {"shoal.commands", "shoal.engines"}])
@pytest.mark.usefixtures("home")
def test_what_is_made_must_have_the_members(
    group: str, ask: Any, code: str, cause: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    package("broken_one", {group: {"odd": "broken_one:thing"}}, code)
    with pytest.raises(UsageError, match=f"broken_one 2.5, broken_one:thing, cannot be used: {cause}"):
        ask("odd", capsys)


def test_what_is_made_must_have_the_name(package: Package) -> None:
    code = "class Thing:\n    name, suffixes = 'even', ('.even',)\n    scan = parse = None\n"
    package("broken_one", {"shoal.formats": {"odd": "broken_one:Thing"}}, code)
    with pytest.raises(UsageError, match=r"'odd' in shoal\.formats.* returned an object with the name 'even'"):
        format_named("odd")


@every_group
@pytest.mark.usefixtures("home")
def test_two_packages_with_one_name_are_an_error(
    group: str, ask: Any, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one_package", "other_package"):
        package(name, {group: {"odd": f"{name}:thing"}})
    with pytest.raises(UsageError, match=r"one_package 2\.5 and other_package 2\.5"):
        ask("odd", capsys)


def test_a_broken_package_breaks_nothing_else(home: Path, package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    """And names are listed without loading anything."""
    groups = sorted({group for group, _ in ASK})
    package("broken_one", {group: {"odd": "broken_one:thing"} for group in groups}, "1 / 0")
    assert next(iter(opened().shuffle("full").decode("pil"))).keys()
    for group, ask in ASK:
        assert "odd" in names(group)
        with pytest.raises(ShoalError) as caught:
            ask("od", capsys)
        said = str(caught.value)
        assert "ZeroDivisionError" not in said
        assert "odd" in said, group
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "a verb of broken_one 2.5" in capsys.readouterr().out
    assert "broken_one" not in sys.modules


@pytest.mark.usefixtures("home")
def test_own_names_are_found_without_a_look_at_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: str) -> NoReturn:
        msg = "entry points were read"
        raise AssertionError(msg)

    monkeypatch.setattr("shoal.plugins.doors._entries", look)
    ds = shoal.open("data", format="tar").shuffle("window", seed=1).decode("pil", size=8)
    assert len(list(ds)) == ds.num_samples
    assert format_of("a.tar.gz").name == "tar.gz"
    assert main(["info", "data/train-*.tar"]) == 0
    open_store("memory://there")
    assert main(["repack", "data/train-*.tar", "there", "--to", "mds", "--engine", "local"]) == 0


def test_own_names_stay_our_own(package: Package) -> None:
    package("broken_one", {"shoal.orders": {"window": "broken_one:thing"}, "shoal.formats": {"tar": "broken_one:x"}})
    assert ORDERS["window"]().name == "window"
    with pytest.raises(SourceError, match="there is no shard format 'tar' with options"):
        format_named("tar", {"some": 1})
    assert list(ORDERS).count("window") == 1


def test_a_door_lists_own_names_and_those_of_packages(package: Package) -> None:
    package("good_one", {"shoal.numbers": {"two": "good_one:two"}}, "def two(): return 2\n")
    door = Door("shoal.numbers", {"one": lambda: 1})
    assert list(door) == ["one", "two"]
    assert len(door) == 2
    assert "two" in door
    assert "three" not in door
    assert door.make("two") == 2
    assert loaded_entry("shoal.numbers", "three") is None
    with pytest.raises(KeyError):
        door["three"]


def test_a_package_that_is_installed_during_the_run_is_found(package: Package, tmp_path: Path) -> None:
    package("some_one", {"shoal.numbers": {"one": "some_one:one"}})
    assert names("shoal.numbers") == ("one",)
    os.utime(tmp_path / "target", (1, 1))
    package("other_one", {"shoal.numbers": {"two": "other_one:two"}})
    assert names("shoal.numbers") == ("one", "two")


def test_a_suffix_that_nobody_has_is_looked_up_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks: list[str] = []

    def look(*, group: str) -> tuple[()]:
        looks.append(group)
        return ()

    monkeypatch.setattr(importlib.metadata, "entry_points", look)
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(100):
        with pytest.raises(SourceError):
            format_of(f"{number}.md")
    assert looks == ["shoal.formats"]


def test_a_suffix_of_two_names(package: Package) -> None:
    """The suffix of a format, alone and compressed, and the name by which its index knows it."""
    code = "class Thing:\n    name, suffixes = 'odd', ('.odd.v2',)\n    scan = parse = None\n"
    package("good_one", {"shoal.formats": {"odd": "good_one:Thing", ".odd.v2": "good_one:Thing"}}, code)
    assert format_of("here/a.ODD.v2").name == "odd"
    assert format_of("here/a.odd.v2") is format_named("odd")
    assert format_of("here/a.odd.v2.zst").name == "odd.zst"
    with pytest.raises(SourceError, match="does not say which format"):
        format_of("here/a.odd")


def test_import_of_shoal_reads_no_entry_points() -> None:
    script = "import sys, shoal, shoal.orders, shoal.cli.main; assert 'importlib.metadata' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_processes_that_scan_find_the_package_on_the_path_of_this_one(
    num_workers: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = GUIDES / "add-a-format.md"
    install(write_package(page, home / "source"), home / "source", home / "target")
    monkeypatch.syspath_prepend(home / "target")
    monkeypatch.setenv("SHOAL_INDEX_WORKERS", str(num_workers))
    for shard in range(4):
        (home / f"{shard}.lrec").write_bytes(bytes([1, 0, 0, 0, shard]) * 25)
    ds = shoal.open("*.lrec")
    assert ds.num_samples == 100
    assert ds[80] == {"data": b"\x03"}
    monkeypatch.delitem(sys.modules, "shoal_lengths")


def test_a_directory_of_shards_of_a_broken_package(home: Path, package: Package) -> None:
    package("broken_one", {"shoal.formats": {"odd": "broken_one:thing", ".odd": "broken_one:thing"}}, "1 / 0")
    (home / "there").mkdir()
    (home / "there" / "a.odd").write_bytes(b"")
    assert documents_format("there", None, field="text") is None  # shards, and no plain text
    with pytest.raises(UsageError, match=r"'\.odd' in shoal\.formats of the package broken_one 2.5.*ZeroDivision"):
        shoal.open("there")
    with pytest.raises(SourceError, match="holds no shards") as caught:
        shoal.open("there", format="tar")
    assert ".odd" not in str(caught.value).partition("found")[0]
