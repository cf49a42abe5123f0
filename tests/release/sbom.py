"""Writes a software bill of materials (CycloneDX 1.6) for each extra: ``python -m tests.release.sbom DIRECTORY``.

It runs in the environment of the tools of a release. The packages come from `tests.release.licences` in the environment
of development. Two runs of one commit write equal bytes: no random serial number, and the time of the commit.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import ExpressionError, get_spdx_licensing
from packageurl import PackageURL

_NAMESPACE = uuid.UUID("6f2b6a52-2f0c-5a1e-9d6c-7c1f0a6f3e10")  # of the bills of shoal


def bill(extra: str, packages: list[dict[str, Any]], *, version: str, seconds: int) -> Bom:
    """Return the bill of an extra; the extra "" is the core."""
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, f"{version}/{extra}"))
    bom.metadata.timestamp = dt.datetime.fromtimestamp(seconds, dt.UTC)
    bom.metadata.component = root = component("shoal", version, "Apache-2.0")
    components = {one["name"]: component(one["name"], one["version"], one["licence"]) for one in packages}
    bom.components.update(components.values())
    needed = {name for one in packages for name in one["requires"]}
    bom.register_dependency(root, [components[name] for name in sorted(set(components) - needed | {"numpy"})])
    for one in packages:
        bom.register_dependency(components[one["name"]], [components[name] for name in one["requires"]])
    return bom


def component(name: str, version: str, licence: str) -> Component:
    """Return a package of PyPI; a licence that is no SPDX expression is given in words."""
    try:
        get_spdx_licensing().parse(licence, validate=True)
        stated: Any = LicenseExpression(licence)
    except ExpressionError:
        stated = DisjunctiveLicense(name=licence)
    url = PackageURL("pypi", name=name, version=version)
    return Component(
        type=ComponentType.LIBRARY, name=name, version=version, purl=url, bom_ref=str(url), licenses=[stated]
    )


def text_of(bom: Bom) -> str:
    """Return the bill as JSON; a bill that the schema forbids is a ValueError."""
    version = SchemaVersion.V1_6
    text: str = make_outputter(bom, OutputFormat.JSON, version).output_as_string(indent=2)
    if (problem := JsonStrictValidator(version).validate_str(text)) is not None:
        raise ValueError(str(problem))
    return text + "\n"


if __name__ == "__main__":
    directory, given = Path(sys.argv[1]), json.load(sys.stdin)
    number, time = os.environ["SHOAL_VERSION"], int(os.environ["SOURCE_DATE_EPOCH"])
    for name, listed in given.items():
        file = directory / f"shoal-{number}{f'-{name}' if name else ''}.cdx.json"
        file.write_text(text_of(bill(name, listed, version=number, seconds=time)), encoding="utf-8")
        print(f"{file.name}  {len(listed)} packages")
