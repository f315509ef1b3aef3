"""Who takes part: the tenants, their customers, and the customers whose mailboxes make trouble."""

from __future__ import annotations

from typing import Final

TENANTS: Final = {
    "Alder Books": "alder.example",
    "Birch Bikes": "birch.example",
    "Cedar Coffee": "cedar.example",
    "Dogwood Toys": "dogwood.example",
    "Elm Shoes": "elm.example",
}
"""Each with the domain of its customers."""

ORDERS: Final = 300

ROLLED_BACK: Final = ORDERS + 1
"""The number of the order whose transaction does not commit."""

_NAMES: Final = ("ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hana", "ida", "jun")


def tenant_of(number: int) -> str:
    """The name of the tenant with whom this order is placed."""
    return list(TENANTS)[number % len(TENANTS)]


def customer_of(number: int) -> str:
    """The address of whoever places this order."""
    return f"{_NAMES[number % len(_NAMES)]}.{number}@{TENANTS[tenant_of(number)]}"


GREYLISTED: Final = frozenset(customer_of(number) for number in range(20, ORDERS, 25))
"""They are put off at the first mail, and get it at the second try."""

CLOSED: Final = customer_of(142)
"""Refuses mail, until its postmaster opens it."""
