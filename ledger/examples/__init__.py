"""The worked example: 1,200 refunds of merchant m_4471, 84,300.00 EUR."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).parent / "m_4471.csv"


@dataclass(frozen=True, slots=True)
class Refund:
    """One line of the example."""

    merchant_id: str
    refund_id: str
    amount_minor: int
    currency: str


def read_example() -> list[Refund]:
    """The example's refunds, in the order of the file."""
    with EXAMPLE.open(newline="") as file:
        return [
            Refund(row["merchant_id"], row["refund_id"], int(row["amount"].replace(".", "")), row["currency"])
            for row in csv.DictReader(file)
        ]
