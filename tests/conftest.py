"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from shoal.storage.http import exchange

# Scripts that made fixtures, or that run beside other packages: they import what the tests do without.
collect_ignore_glob = [
    "*/data/*",
    "compat/*",
    "exits.py",
    "integration/laws/*",
    "integration/inside_*",
    "integration/log_to_trackers.py",
    "integration/run_page.py",
    "integration/second_dealing*",
]

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run and machine: a red check must be a change of ours, and more of the same find no more.
# HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile(
    "ci", derandomize=True, max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """Keep what the tests and the examples of docstrings index out of the cache of who runs them."""
    made = tempfile.TemporaryDirectory(prefix="shoal-tests-")
    config.add_cleanup(made.cleanup)
    os.environ["SHOAL_CACHE_DIR"] = made.name


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let the collector of garbage look at what tests make, and not at the tests.

    Twelve thousand tests are 600,000 objects that stay: each ``gc.collect()`` of a test took 0.4 seconds for these.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(params=["libcurl", "plain", "compiled"])
def http_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of the client for http of stores that are made meanwhile, also by processes that this one starts.

    "libcurl" is used here for http too. "compiled" is the plain client with the compiled exchange.
    """
    if request.param == "libcurl":
        pytest.importorskip("pycurl")
        monkeypatch.setattr("shoal.storage.http.best_client.BestClient._client_for", lambda self, _: self._of_tls)
        return "libcurl"
    is_compiled = request.param == "compiled"
    if is_compiled and not exchange.is_compiled:
        pytest.skip("there is no compiled module")
    function = exchange.exchange_compiled if is_compiled else exchange.exchange_in_python
    monkeypatch.setattr("shoal.storage.http.plain_client.exchange", function)
    monkeypatch.setenv("SHOAL_PURE_PYTHON", str(int(not is_compiled)))
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "pycurl.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "missing"), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "pycurl", None)
    return str(request.param)
