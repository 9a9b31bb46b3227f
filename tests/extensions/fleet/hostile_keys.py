"""Keys of segments that paths, pages, requests or people may take for something else."""

from __future__ import annotations

import random

_PIECES = [
    "../../up", "/etc/passwd", "C:\\x", "a\x00b", "~", ".", "..", "con", "%2e%2e%2f", "A1", "a1", "a1 ", " a1", "Å",
    "A\u030a", "🏪", "\u202egpj", "\u200b", "<img src=x onerror=alert(1)>", "' OR 1=1 --", "{{ ti }}", "${HOME}",
    "`id`", "a\nb", "a\tb", "key,with;marks", '"', "#?&=", "null", "NaN", "-0", "007", "1e3", "True", "hops://x", "*",
]  # fmt: skip


def hostile_keys(count: int, seed: int = 0) -> list[str]:
    """So many different keys: each piece, one of the greatest length, and joined pieces."""
    generator, keys = random.Random(seed), [*_PIECES, "x" * 1024]
    while len(keys) < count:
        key = "".join(generator.sample(_PIECES, generator.randint(2, 4)))
        keys += [key] if key not in keys else []
    return keys[:count]
