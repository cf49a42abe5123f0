"""The current metadata file of an Iceberg table: in a catalog, or in the directory of the table."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from shoal.errors import SourceError, UsageError
from shoal.indexing.tables.snapshot_protocol import TableRequest
from shoal.storage.urls import join, redacted, scheme_of, without_secrets
from shoal.tables.iceberg.store_file_io import store_file_io
from shoal.tables.table_requests import needs, path_below, root_of

CATALOG = "catalog"
"""Key of the options of a catalog in ``storage_options``."""

_METADATA = ".metadata.json"
_HINT_FILE = "version-hint.text"
_NUMBER = re.compile(r"(?:^|/)v?(\d+)[^/]*\.metadata\.json$")
_NEWEST = "name the metadata file, .../metadata/NAME.metadata.json, or the table in its catalog: iceberg://CATALOG/NAME"


class IcebergTable(NamedTuple):
    """A table of pyiceberg, the directory that holds it, and the options of the store of its files."""

    table: Any
    root: str
    storage_options: Mapping[str, Any]


def iceberg_table(request: TableRequest) -> IcebergTable:
    """Load the current metadata of a table.

    Raises `SourceError`: there is no such table, or its newest metadata file is ambiguous; `UsageError`: pyiceberg is
    missing, or the catalog cannot be reached.
    """
    try:
        import pyiceberg  # noqa: F401, PLC0415  # optional
    except ImportError:
        raise needs("pyiceberg", "an Iceberg table") from None
    options = {name: value for name, value in request.storage_options.items() if name != CATALOG}
    if _is_in_catalog(request):
        location, table = _from_catalog(request)
        return IcebergTable(_loaded(location, options), path_below("", table.location()), options)
    location = _newest(request, root_of(request))
    table = _loaded(location, options)
    return IcebergTable(table, location.rpartition("/metadata/")[0] or location.rpartition("/")[0], options)


def _is_in_catalog(request: TableRequest) -> bool:
    """Return True for CATALOG/NAMESPACE.TABLE: neither a URL nor an existing path."""
    root = request.root
    if CATALOG in request.storage_options:
        return True
    is_name = re.fullmatch(r"[^/:~]+/[^/:]+\.[^/:]+", root) is not None
    return is_name and not scheme_of(root) and not os.path.lexists(root)


def _from_catalog(request: TableRequest) -> tuple[str, Any]:
    """Return the current metadata file of a table in a catalog, and the table as the catalog knows it."""
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415  # optional

    catalog, _, name = request.root.strip("/").partition("/")
    options = request.storage_options.get(CATALOG) or {}
    if not isinstance(options, Mapping):
        msg = f"storage_options: catalog is a dict of pyiceberg's options, not {type(options).__name__}"
        raise UsageError(msg, hint='{"catalog": {"type": "rest", "uri": "https://..."}}')
    try:
        table = load_catalog(catalog, **{key: str(value) for key, value in options.items()}).load_table(name)
    except Exception as error:  # noqa: BLE001  # of many kinds: catalogs are servers and databases
        secrets = [str(value) for value in options.values() if len(str(value)) > 3]
        reason = redacted(" ".join(str(error).split()), secrets)
        msg = f"iceberg://{request.root}: pyiceberg cannot load this table: {type(error).__name__}: {reason:.300}"
        hint = 'iceberg://CATALOG/NAMESPACE.TABLE, with storage_options={"catalog": {"uri": ...}} or ~/.pyiceberg.yaml'
        raise SourceError(msg, hint=hint) from None
    return path_below("", table.metadata_location), table


def _newest(request: TableRequest, root: str) -> str:
    """Return the newest metadata file of a directory: the file that version-hint.text names, or the highest number."""
    if root.endswith(_METADATA):
        return root
    folder = join(root, "metadata")
    hint_file = request.store.find(join(folder, _HINT_FILE))
    infos = [info.path for info in request.store.list(folder)]
    files = [path for path in infos if path.endswith(_METADATA)]
    if hint_file is not None:
        hint = request.store.read_range(hint_file.path, 0, hint_file.num_bytes).decode().strip()
        named = hint if hint.endswith(_METADATA) else f"{f'v{hint}' if hint.isdecimal() else hint}{_METADATA}"
        files = [path for path in files if path.rpartition("/")[2] == named] or files
    numbers = {path: int(match[1]) for path in files if (match := _NUMBER.search(path))}
    newest = sorted(path for path in numbers if numbers[path] == max(numbers.values()))
    if not newest:
        msg = f"{without_secrets(root)}: there is no Iceberg table here: no metadata/*{_METADATA}"
        raise SourceError(msg, hint=_NEWEST)
    if len(newest) > 1:
        msg = f"{without_secrets(root)}: {len(newest)} metadata files have the highest number: {', '.join(newest):.300}"
        raise SourceError(msg, hint=f"only the catalog knows which of them is current: {_NEWEST}")
    return newest[0]


def _loaded(location: str, storage_options: Mapping[str, Any]) -> Any:
    """Load a metadata file as a table of pyiceberg."""
    from pyiceberg.catalog.noop import NoopCatalog  # noqa: PLC0415  # optional
    from pyiceberg.serializers import FromInputFile  # noqa: PLC0415  # the same
    from pyiceberg.table import StaticTable  # noqa: PLC0415  # the same

    files = store_file_io(storage_options)
    make = partial(StaticTable, ("table",), metadata_location=location, io=files, catalog=NoopCatalog("table"))
    try:
        return make(metadata=FromInputFile.table_metadata(files.new_input(location)))
    except FileNotFoundError as error:
        raise SourceError(f"{without_secrets(location)}: there is no such metadata file", hint=_NEWEST) from error
    except ValueError as error:  # pydantic's, too
        msg = f"{without_secrets(location)}: pyiceberg cannot read this metadata: {' '.join(str(error).split()):.300}"
        raise SourceError(msg, hint="a newer pyiceberg may know more: pip install --upgrade pyiceberg") from None
