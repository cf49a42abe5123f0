"""Each server is started once, and tests that need one which cannot be had are skipped with the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.environments import CannotHaveError
from tests.integration.installs import python_with
from tests.integration.places import SERVERS, Dataset, filled, write_shards
from tests.integration.servers import Server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.integration)
            # The first test of a server waits for its installation.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", autouse=True)
def _no_credentials_of_the_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    empty = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_CONFIG_FILE", str(empty / "aws-config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(empty / "aws-credentials"))
        for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("no_proxy", "127.0.0.1,localhost")
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of indexes for each test."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def python() -> Callable[[str], Path]:
    """Python with the packages of an environment; tests of one that cannot be had are skipped by its name."""

    def of(name: str) -> Path:
        try:
            return python_with(name)
        except CannotHaveError as error:
            pytest.skip(f"no {name} here: {error}")

    return of


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of tars."""
    return write_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[[str], Server]]:
    """A server by name, started when first asked for; what failed once is not tried again."""
    known: dict[str, Server | CannotHaveError] = {}
    with contextlib.ExitStack() as stack:

        def server(name: str) -> Server:
            if name not in known:
                try:
                    context: AbstractContextManager[Server] = SERVERS[name]()
                    known[name] = stack.enter_context(context)
                except CannotHaveError as error:
                    known[name] = error
            found = known[name]
            if isinstance(found, CannotHaveError):
                pytest.skip(f"no {name} here: {found}")
            return found

        yield server


@pytest.fixture(params=sorted(SERVERS))
def remote(request: pytest.FixtureRequest, started: Callable[[str], Server], shards: Path) -> Dataset:
    """The shards below a URL of their own, on each server."""
    return filled(request.param, started(request.param), shards)


@pytest.fixture(params=["azurite", "swift"])
def bucket(request: pytest.FixtureRequest, started: Callable[[str], Server], shards: Path) -> Dataset:
    """The same on the servers that list and take objects."""
    return filled(request.param, started(request.param), shards)
