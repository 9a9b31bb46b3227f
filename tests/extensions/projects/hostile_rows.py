"""A file whose columns and cells are as odd as they get."""

from __future__ import annotations

import random
from pathlib import Path


def hostile_csv(path: Path) -> None:
    """A price by size and colour; columns of any name, semicolons, a byte order mark, cells of several lines."""
    numbers = random.Random(1)
    lines = ['"Größe in ""cm""";a b;class;"new\nline";;Kunden_ID;am;"""price"""']
    for row in range(1200):
        size, colour = round(numbers.gauss(170, 10), 1), numbers.choice(["red", '"a; ""b"""', '"c\nd"', ""])
        odd = numbers.choice(["?", "1", "3.5"])
        price = round(2 * size + 20 * (colour == "red") + numbers.random(), 2)
        is_new, time = numbers.choice(["TRUE", "FALSE"]), f"2026-01-{row % 28 + 1:02} 12:00"
        lines.append(f"{size};{odd};{colour};{is_new};{row};K{row:04};{time};{price}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
