"""An invoice as a PDF, drawn with fpdf2. The same order gives the same bytes."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from fpdf import FPDF
from fpdf.enums import XPos, YPos

from skiplock.cli.demo.data import Customer, Line, Order, money

INK, SOFT, RULE, BRAND, TINT = (33, 37, 41), (110, 117, 125), (214, 219, 224), (22, 84, 92), (241, 246, 246)
LEFT, RIGHT, FONT = 20.0, 190.0, "helvetica"  # millimetres on A4
# heading, width, alignment
COLUMNS = (("Article", 92.0, "L"), ("Quantity", 20.0, "R"), ("Unit price", 28.0, "R"), ("Amount", 30.0, "R"))


class _Page(FPDF):
    """A page with the demo's footer, also where a long order runs over."""

    def footer(self) -> None:
        self.set_draw_color(*RULE)
        self.line(LEFT, 276, RIGHT, 276)
        self.set_xy(LEFT, 278)
        made_up = "Hazel & Wren is a made-up shop; this invoice was drawn by skiplock demo."
        _say(self, made_up, size=7.5, color=SOFT, width=140, stay=True)
        _say(self, f"Page {self.page_no()} of {{nb}}", size=7.5, color=SOFT, width=30, align="R")


def write_invoice(order: Order, customer: Customer, folder: Path) -> Path:
    """Write ``invoice-<number>.pdf``; a reader never sees half of it."""
    path = folder / f"invoice-{order.number}.pdf"
    draft = folder / f"invoice-{order.number}.{os.getpid()}.draft"
    draft.write_bytes(render_invoice(order, customer))
    draft.replace(path)
    return path


def render_invoice(order: Order, customer: Customer) -> bytes:
    pdf = _Page(format="A4")
    pdf.set_creation_date(datetime.combine(date.fromisoformat(order.date), time(9, 0), UTC))
    pdf.set_title(f"Invoice {order.number}")
    pdf.set_author("Hazel & Wren")
    pdf.set_margins(LEFT, 18, 210 - RIGHT)
    pdf.set_auto_page_break(True, margin=26)
    pdf.add_page()
    _letterhead(pdf)
    _parties(pdf, order, customer)
    _head_row(pdf)
    for number, line in enumerate(order.lines):
        _line_row(pdf, line, shaded=number % 2 == 1)
    _totals(pdf, order)
    _payment(pdf, order)
    return bytes(pdf.output())


def _letterhead(pdf: FPDF) -> None:
    pdf.set_fill_color(*BRAND)
    pdf.rect(0, 0, 210, 5, style="F")
    pdf.set_xy(LEFT, 17)
    _say(pdf, "Hazel & Wren", size=22, style="B", color=BRAND, height=9)
    _say(pdf, "Paper, pens and ink", size=10, color=SOFT, height=5)
    pdf.set_xy(LEFT, 17)
    for text in ("14 Quay Street", "Bristol BS1 0AA", "hello@hazelwren.example", "VAT no. EX 123 4567 89"):
        _say(pdf, text, size=8.5, color=SOFT, height=4.4, align="R")


def _parties(pdf: FPDF, order: Order, customer: Customer) -> None:
    pdf.set_xy(LEFT, 52)
    _say(pdf, "Billed to", size=8, style="B", color=SOFT, height=5)
    for index, text in enumerate(
        filter(None, (customer.company, customer.name, customer.street, customer.city, customer.country))
    ):
        _say(pdf, text, size=10.5, style="B" if index == 0 else "", height=5.2)
    issued = date.fromisoformat(order.date)
    facts = (
        ("Invoice", order.number),
        ("Date", _day(issued)),
        ("Customer", f"C-{customer.id:04d}"),
        ("Due", "Paid" if order.paid else _day(issued + timedelta(days=14))),
    )
    for row, (label, value) in enumerate(facts):
        pdf.set_xy(128, 57 + 5.4 * row)
        _say(pdf, label, size=9.5, color=SOFT, width=24, stay=True)
        _say(pdf, value, size=9.5, style="B", width=RIGHT - 152, align="R")
    pdf.set_xy(LEFT, 92)
    _say(pdf, f"Invoice {order.number}", size=16, style="B", height=10)
    pdf.set_y(105)


def _head_row(pdf: FPDF) -> None:
    pdf.set_fill_color(*BRAND)
    for heading, width, align in COLUMNS:
        _say(
            pdf,
            heading,
            size=8.5,
            style="B",
            color=(255, 255, 255),
            width=width,
            height=7.5,
            align=align,
            stay=True,
            fill=True,
        )
    pdf.ln(7.5)


def _line_row(pdf: FPDF, line: Line, *, shaded: bool) -> None:
    if pdf.will_page_break(10.5):
        pdf.add_page()
        _head_row(pdf)
    top = pdf.get_y()
    if shaded:
        pdf.set_fill_color(*TINT)
        pdf.rect(LEFT, top, RIGHT - LEFT, 10.5, style="F")
    pdf.set_xy(LEFT, top + 1)
    _say(pdf, line.title, size=9.5, width=COLUMNS[0][1], height=5)
    _say(pdf, line.sku, size=7.5, color=SOFT, width=COLUMNS[0][1], height=4)
    pdf.set_xy(LEFT + COLUMNS[0][1], top + 1)
    cells = (str(line.quantity), money(line.unit_cents), money(line.cents))
    for text, (_, width, align) in zip(cells, COLUMNS[1:], strict=True):
        _say(pdf, text, size=9.5, width=width, height=5, align=align, stay=True)
    pdf.set_xy(LEFT, top + 10.5)


def _totals(pdf: FPDF, order: Order) -> None:
    rows = [("Subtotal", money(order.subtotal_cents))]
    if order.discount_percent:
        rows.append((f"Discount {order.discount_percent} %", "-" + money(order.discount_cents)))
    rows.append(("Shipping", money(order.shipping_cents) if order.shipping_cents else "free"))
    rows.append((f"VAT {order.vat_percent} %", money(order.vat_cents)))
    if pdf.will_page_break(5.8 * len(rows) + 34):
        pdf.add_page()
    pdf.set_draw_color(*RULE)
    pdf.line(LEFT, pdf.get_y(), RIGHT, pdf.get_y())
    pdf.ln(3)
    for label, value in rows:
        _total_row(pdf, label, value)
    pdf.ln(2)
    pdf.set_fill_color(*TINT)
    pdf.rect(120, pdf.get_y(), RIGHT - 120, 10, style="F")
    pdf.ln(2.1)
    _total_row(pdf, "Total EUR", money(order.total_cents), strong=True)


def _total_row(pdf: FPDF, label: str, value: str, *, strong: bool = False) -> None:
    size, style = (11.5, "B") if strong else (9.5, "")
    pdf.set_x(122)
    _say(pdf, label, size=size, style=style, color=BRAND if strong else SOFT, width=34, height=5.8, stay=True)
    _say(pdf, value, size=size, style=style, width=RIGHT - 156, height=5.8, align="R")


def _payment(pdf: FPDF, order: Order) -> None:
    pdf.ln(9)
    issued = date.fromisoformat(order.date)
    if order.paid:
        text = f"Paid by card on {_day(issued)}. Nothing is left to do; thank you."
    else:
        due = _day(issued + timedelta(days=14))
        text = f"Please transfer EUR {money(order.total_cents)} by {due}, quoting {order.number}."
    _say(pdf, text, size=9.5)


def _say(
    pdf: FPDF,
    text: str,
    *,
    size: float = 10,
    style: str = "",
    color: tuple[int, int, int] = INK,
    width: float = 0,
    height: float = 5.0,
    align: str = "L",
    stay: bool = False,
    fill: bool = False,
) -> None:
    """One piece of text; `stay` keeps the line, otherwise the next one begins below."""
    pdf.set_font(FONT, style, size)
    pdf.set_text_color(*color)
    x, y = (XPos.RIGHT, YPos.TOP) if stay else (XPos.LEFT, YPos.NEXT)
    pdf.cell(width, height, text, align=align, fill=fill, new_x=x, new_y=y)


def _day(day: date) -> str:
    return f"{day.day} {day:%B} {day.year}"
