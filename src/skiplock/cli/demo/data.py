"""The small shop the demo plays with: 40 customers and 60 orders, shipped as `orders.json`."""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec


class Customer(msgspec.Struct, frozen=True):
    """Somebody who gets a welcome e-mail. The address decides how the demo's mail server treats it."""

    id: int
    name: str
    company: str | None
    street: str
    city: str
    country: str
    email: str


class Line(msgspec.Struct, frozen=True):
    """One line of an order. Money is in cents."""

    sku: str
    title: str
    quantity: int
    unit_cents: int

    @property
    def cents(self) -> int:
        return self.quantity * self.unit_cents


class Order(msgspec.Struct, frozen=True):
    """One order; it becomes one invoice and one webhook delivery."""

    number: str
    date: str
    customer: int
    discount_percent: int
    shipping_cents: int
    vat_percent: int
    paid: bool
    lines: tuple[Line, ...]

    @property
    def subtotal_cents(self) -> int:
        return sum(line.cents for line in self.lines)

    @property
    def discount_cents(self) -> int:
        return percent(self.subtotal_cents, self.discount_percent)

    @property
    def net_cents(self) -> int:
        return self.subtotal_cents - self.discount_cents + self.shipping_cents

    @property
    def vat_cents(self) -> int:
        return percent(self.net_cents, self.vat_percent)

    @property
    def total_cents(self) -> int:
        return self.net_cents + self.vat_cents


class Shop(msgspec.Struct, frozen=True):
    """All of the data set."""

    customers: tuple[Customer, ...]
    orders: tuple[Order, ...]

    def order(self, number: str) -> Order:
        return next(order for order in self.orders if order.number == number)

    def customer(self, id: int) -> Customer:
        return next(customer for customer in self.customers if customer.id == id)


def percent(cents: int, rate: int) -> int:
    """`rate` per cent of `cents`, rounded half up."""
    return (cents * rate + 50) // 100


def money(cents: int) -> str:
    """``1,234.50``"""
    return f"{cents // 100:,}.{cents % 100:02d}"


@cache
def shop() -> Shop:
    text = resources.files(__package__).joinpath("orders.json").read_bytes()
    return msgspec.json.decode(text, type=Shop)
