"""Orders by name, and by texts that describe them."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.order.registry import ORDERS, named_order, order_of_text


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_is_made_again_from_its_name_and_parameters(name: str) -> None:
    order = ORDERS[name]()
    again = named_order(order.name, order.parameters)
    assert again.parameters == order.parameters
    one, other = (each.bind([3, 4, 5], seed=1).ids(0, 5) for each in (order, again))
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windo", "did you mean 'window'"),
        ("block(chunk=3)", "has no argument 'chunk'.*did you mean 'chunks'"),
        ("block(64)", "does not describe an order"),
        ("block(chunks=len('x'))", "does not describe an order"),
        ("block(**{})", "does not describe an order"),
        ("block(", "does not describe an order"),
        ("full(seed=3)", "no argument 'seed'.*no arguments but seed="),
    ],
)
def test_a_text_that_describes_none(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        order_of_text(text)
