"""Files of pyiceberg in a store of shoal: metadata is read with the options, retries and limits of data."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from shoal.errors import StorageError
from shoal.storage.retry import with_retries
from shoal.storage.storage_errors import is_missing
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import Store
from shoal.tables.table_requests import path_below


def store_file_io(storage_options: Mapping[str, Any] | None) -> Any:
    """Return a ``FileIO`` of pyiceberg that only reads."""
    from pyiceberg.io import FileIO  # noqa: PLC0415  # optional

    @cache
    def store_of(path: str) -> Store:
        return with_retries(open_store(path, storage_options), storage_options)

    class StoreFileIO(FileIO):
        def new_input(self, location: str) -> Any:
            return _input_file()(location, store_of)

        def new_output(self, location: str) -> Any:
            raise io.UnsupportedOperation(f"{location}: tables are only read")

        def delete(self, location: Any) -> None:
            raise io.UnsupportedOperation(f"{location}: tables are only read")

    return StoreFileIO()


@cache
def _input_file() -> Callable[[str, Callable[[str], Store]], Any]:
    from pyiceberg.io import InputFile  # noqa: PLC0415  # optional

    class StoreInputFile(InputFile):
        """An object of a store; ``open`` reads all its bytes, since metadata is read as a whole."""

        def __init__(self, location: str, store_of: Callable[[str], Store]) -> None:
            super().__init__(location)
            self._path = path_below("", location)
            self._store = store_of(self._path)

        def __len__(self) -> int:
            return int(self._stat("look at").num_bytes)

        def exists(self) -> bool:
            return self._store.find(self._path) is not None

        def open(self, seekable: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002  # as pyiceberg declares it
            num_bytes = self._stat("read").num_bytes
            return io.BytesIO(self._store.read_range(self._path, 0, num_bytes))

        def _stat(self, verb: str) -> Any:
            try:
                return self._store.stat(self._path)
            except StorageError as error:
                if is_missing(error):
                    raise FileNotFoundError(f"could not {verb} {self._path}: no such file") from error
                raise

    return StoreInputFile
