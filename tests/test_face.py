"""The face of the package: what `import shoal` gives."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version

import pytest

import shoal


def test_all_is_sorted_without_repeats_and_small() -> None:
    assert list(shoal.__all__) == sorted(set(shoal.__all__))
    assert len(shoal.__all__) <= 25


def test_every_promised_name_is_there_and_explained() -> None:
    for name in shoal.__all__:
        assert inspect.getdoc(getattr(shoal, name)), name


def test_no_public_name_is_forgotten() -> None:
    # Rooms become attributes when something imports them, and are reached by their own name.
    public = {
        name
        for name, value in vars(shoal).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }
    assert public <= set(shoal.__all__)


def test_dir_shows_the_promised_names() -> None:
    assert set(shoal.__all__) <= set(dir(shoal))


def test_version_is_that_of_the_installed_package() -> None:
    assert shoal.__version__ == version("shoal")
    assert re.match(r"\d+\.\d+", shoal.__version__)


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'shoal' has no attribute 'opne'"):
        _ = shoal.opne
