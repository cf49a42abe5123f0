"""The answer of `shoal --version`: version, build, Python, and the installed libraries of each extra."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

from shoal.cli import output
from shoal.cli.installation.build_origin import build_origin
from shoal.formats.compiled_cutting import is_compiled
from shoal.hints import LIBRARIES_OF_EXTRA

# In no extra: a user has them for other reasons, and shoal works with them.
FRAMEWORKS = (
    "torch",
    "torchdata",
    "torchvision",
    "lightning",
    "accelerate",
    "transformers",
    "datasets",
    "jax",
    "fsspec",
    "boto3",
)


def version_report() -> dict[str, Any]:
    """Return all facts: libraries and frameworks by name with their version, or None if they are not installed."""
    installed = distribution("shoal")
    return {
        "version": installed.version,
        "build": build_origin(installed.read_text("direct_url.json")),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "numpy": _version("numpy"),
        "is_compiled": is_compiled,
        "libraries": {
            extra: {name: _version(name) for name in libraries.split()}
            for extra, libraries in LIBRARIES_OF_EXTRA.items()
        },
        "frameworks": {name: _version(name) for name in FRAMEWORKS},
    }


def say_version(*, as_json: bool) -> None:
    """Print the facts: the version in the first line, and one line for each extra."""
    report = version_report()
    if as_json:
        output.emit(report, as_json=True)
        return
    output.say(f"shoal {report['version']}")
    facts = {name: report[name] for name in ("build", "python", "platform", "numpy")}
    facts["compiled"] = report["is_compiled"]
    facts |= {extra: _in_words(versions) for extra, versions in report["libraries"].items()}
    installed = {name: number for name, number in report["frameworks"].items() if number is not None}
    output.emit(facts | {"beside it": _in_words(installed) or "no framework"})


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _in_words(versions: dict[str, str | None]) -> str:
    present = ", ".join(f"{name} {number}" for name, number in versions.items() if number is not None)
    missing = ", ".join(name for name, number in versions.items() if number is None)
    return "; ".join(filter(None, (present, missing and f"missing: {missing}")))
