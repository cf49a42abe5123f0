"""JAX itself, imported on first use."""

from __future__ import annotations

from typing import Any

from shoal.errors import UsageError


def jax_library() -> Any:
    """Import and return the module ``jax``.

    Raises
    ------
    UsageError
        JAX is not installed.
    """
    try:
        import jax  # noqa: PLC0415  # optional, and slow to import
    except ImportError as error:
        msg = "shoal.jax needs jax, which is not installed"
        raise UsageError(msg, hint="pip install jax, for your accelerator as its documentation says") from error
    return jax
