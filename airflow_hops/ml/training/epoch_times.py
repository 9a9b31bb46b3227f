"""Times of the ranks in an epoch: computing, waiting for rows, exchanging gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from airflow_hops.ml.training.session import Session


def report_epoch(
    session: Session,
    epoch: int,
    seconds: Sequence[float],
    rows: Sequence[float],
    exchange: Sequence[float],
    row_counts: Sequence[float],
) -> None:
    """Reports the slowest rank of an epoch, and the times of all; arguments are by rank, in seconds but for counts.

    Ranks other than 0 report nothing.
    """
    if session.rank.number:
        return
    slowest = find_slowest(seconds, rows, exchange)
    session.slowest.append(slowest)
    ranks = [
        {
            "row_count": int(count),
            "computing": round(all_ - waiting - exchanging, 3),
            "rows": round(waiting, 3),
            "exchange": round(exchanging, 3),
        }
        for all_, waiting, exchanging, count in zip(seconds, rows, exchange, row_counts, strict=True)
    ]
    session.rank.channel.send("slowest", epoch=epoch, **slowest, ranks=ranks)


def find_slowest(seconds: Sequence[float], rows: Sequence[float], exchange: Sequence[float]) -> dict[str, object]:
    """Returns the rank that the others wait for in an epoch, and what takes its time; arguments are seconds by rank.

    The exchange includes the wait for other ranks, so the slowest rank is the one with most time outside of it.

    Returns:
        ``rank``, its seconds of ``computing``, ``rows`` and ``exchange``, the largest of these as ``waits_for``, and
        ``times``: its time outside of the exchange as a multiple of the median rank's.
    """
    own = [all_ - exchanging for all_, exchanging in zip(seconds, exchange, strict=True)]
    rank = max(range(len(own)), key=own.__getitem__)
    parts = {"rows": rows[rank], "computing": own[rank] - rows[rank], "exchange": exchange[rank]}
    times = own[rank] / max(float(np.median(own[:rank] + own[rank + 1 :])), 1e-9)
    rounded = {name: round(value, 3) for name, value in parts.items()}
    return {"rank": rank, **rounded, "waits_for": max(parts, key=parts.__getitem__), "times": round(times, 2)}
