"""The tests; a package only so that `tests.layers` and `tests.samples` can be imported by name."""
