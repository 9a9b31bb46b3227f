"""The best schedule of retrainings in hindsight."""

from __future__ import annotations

from collections.abc import Sequence


def best_schedule(
    values: Sequence[Sequence[float]], rows: Sequence[int], available: Sequence[int], price: float
) -> list[int]:
    """Finds which candidate should have served in each period.

    Dynamic programming (Bellman, 1957) over periods and candidates: the best course that ends with a candidate in a
    period is the best that ended with it, or with any other for the price of a training, in the period before.

    Args:
        values: Of each candidate its metric in each period, more being better.
        rows: Rows of each period.
        available: Of each candidate the first period in which it can serve.
        price: What a change costs, in the metric's unit on average over all rows.

    Returns:
        Numbers of candidates, one for each period. Candidate 0 serves at the beginning, at no price.
    """
    total = sum(rows) or 1
    best = [0.0 if number == 0 else float("-inf") for number in range(len(values))]
    came_from: list[list[int]] = []
    for period, count in enumerate(rows):
        top = max(range(len(best)), key=lambda number: best[number])
        before, best, origins = best, [], []
        for number, of in enumerate(values):
            changes = available[number] <= period and before[top] - price > before[number]
            origins.append(top if changes else number)
            best.append((before[top] - price if changes else before[number]) + of[period] * count / total)
        came_from.append(origins)
    last = max(range(len(best)), key=lambda number: best[number])
    schedule = []
    for origins in reversed(came_from):
        schedule.append(last)
        last = origins[last]
    return schedule[::-1]
