"""Generator of columns that change: as the world changes, or by a real conversion of units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Draw = Callable[[int], Any]
REFERENCE_ROWS = 6_000
NAMES = ("x", "f17", "amount", "cost_eur", "wait_minutes", "score", "visits", "ratio", "stars", "price", "sensor_b")
"""Names that name no unit of a small factor."""
FAR = {
    "a share to percent": 100.0, "percent to a share": 0.01, "second to millisecond": 1e3, "gram to kilogram": 1e-3,
    "second to minute": 1 / 60, "minute to second": 60.0, "hour to second": 3600.0, "second to hour": 1 / 3600,
    "byte to megabyte": 1e-6, "day to second": 86400.0, "millimetre to centimetre": 0.1, "ten": 10.0,
}  # fmt: skip
"""Conversions by factors so large that they need no name."""
NEAR = {
    "distance_km": (1 / 1.609344, 0.0), "trip_miles": (1.609344, 0.0), "height_m": (3.28084, 0.0),
    "altitude_ft": (0.3048, 0.0), "length_inch": (2.54, 0.0), "width_cm": (1 / 2.54, 0.0), "weight_kg": (2.204623, 0.0),
    "mass_lb": (0.45359237, 0.0), "wind_speed_ms": (3.6, 0.0), "speed_kmh": (1 / 3.6, 0.0),
    "speed_mph": (1.609344, 0.0),
    "volume_gallons": (3.785412, 0.0), "fuel_litres": (1 / 3.785412, 0.0), "temp_f": (1 / 1.8, -32 / 1.8),
    "temp_c": (1.8, 32.0), "temperature_kelvin": (1.0, -273.15), "temperature": (1.0, 273.15),
    "pressure_inhg": (33.86389, 0.0), "wind_knots": (1.852, 0.0), "duration_days": (24.0, 0.0),
}  # fmt: skip
"""Conversions by factors as the world changes by, of columns whose names name the unit or the quantity."""


@dataclass(frozen=True)
class Changed:
    name: str
    change: str
    reference: Any
    current: Any


def _populations(random: Any) -> dict[str, Draw]:
    """Populations of values, each with parameters drawn by ``random``."""
    scale, sigma = 10 ** random.uniform(-1, 4), random.uniform(0.2, 1.4)
    mean, spread, shape = random.uniform(20, 400), random.uniform(0.05, 0.5), random.uniform(0.8, 8)
    rate, zeros, digits = random.uniform(8, 300), random.uniform(0.1, 0.7), int(random.integers(0, 3))
    return {
        "log-normal": lambda n: scale * random.lognormal(0, sigma, n),
        "normal": lambda n: random.normal(mean, mean * spread, n),
        "centred": lambda n: random.normal(0, mean, n),
        "gamma": lambda n: scale * random.gamma(shape, 1, n),
        "uniform": lambda n: random.uniform(mean, 3 * mean, n),
        "bounded": lambda n: random.beta(shape, 2, n),
        "counts": lambda n: random.poisson(rate, n).astype(float),
        "wide counts": lambda n: random.negative_binomial(2, 2 / (2 + rate), n).astype(float),
        "heavy tails": lambda n: mean * (1 + random.pareto(2.5, n)),
        "heavy tails on both sides": lambda n: mean + mean * spread * random.standard_t(3, n),
        "with zeros": lambda n: np.where(random.random(n) < zeros, 0.0, scale * random.lognormal(0, sigma, n)),
        "rounded": lambda n: np.round(scale * random.lognormal(0, sigma, n), digits),
        "few numbers": lambda n: random.integers(1, 12, n).astype(float),
    }


def _temperatures(random: Any, name: str) -> dict[str, Draw]:
    """Populations of temperatures that there are, in the unit of the column."""
    mean, deviation = random.uniform(-5, 35), random.uniform(3, 12)
    low, tail = mean - random.uniform(5, 15), random.uniform(2, 8)
    unit = name.rpartition("_")[2]
    factor, shift = {"f": (1.8, 32.0), "kelvin": (1.0, 273.15)}.get(unit, (1.0, 0.0))
    return {
        "normal": lambda n: factor * random.normal(mean, deviation, n) + shift,
        "rounded": lambda n: np.round(factor * random.normal(mean, deviation, n) + shift, 1),
        "skewed": lambda n: factor * (low + random.gamma(tail, 2, n)) + shift,
    }


def _pick(random: Any, values: Any) -> Any:
    return list(values)[int(random.integers(len(values)))]


def world_changes(seed: int, count: int, rows: int) -> Iterator[Changed]:
    """Yields columns changed by a random factor, shift or mixture, also by whole numbers."""
    for number in range(count):
        random = np.random.default_rng([seed, rows, number])
        populations = _populations(random)
        population = _pick(random, populations)
        reference, now = (populations[population](n) for n in (REFERENCE_ROWS, rows))
        deviation = reference.std()
        factor = float(np.exp(random.uniform(np.log(1.15), np.log(5))))
        factor = _pick(random, (factor, 1 / factor, factor, round(factor, 1), float(random.integers(2, 9))))
        shift = _pick(random, (-1, 1)) * random.uniform(0.2, 3) * deviation
        other = populations[_pick(random, populations)](rows) if random.random() < 0.5 else now * factor
        some = random.random(rows) < random.uniform(0.05, 0.9)
        change, changed = _pick(
            random,
            {
                (f"times {factor:.4g}", 0): now * factor,
                (f"plus {shift:.4g}", 0): now + shift,
                (f"times {factor:.4g} plus {shift:.4g}", 0): now * factor + shift,
                (f"{some.mean():.2f} of others, or times {factor:.4g}", 0): np.where(some, other, now),
            }.items(),
        )
        if (reference == reference.round()).all() and random.random() < 0.5:
            changed = changed.round()  # as counts are
        names = [*NAMES, *NEAR] if random.random() < 0.3 else NAMES
        yield Changed(_pick(random, names), f"{population}, {change[0]}", reference, changed)


def conversions(seed: int, count: int, rows: int) -> Iterator[Changed]:
    """Yields columns converted to another unit."""
    for number in range(count):
        random = np.random.default_rng([seed, rows, number, 1])
        if random.random() < 0.5:
            name, (conversion, factor) = _pick(random, NAMES), _pick(random, FAR.items())
            shift = 0.0
        else:
            conversion = name = _pick(random, NEAR)
            factor, shift = NEAR[name]
        populations = _temperatures(random, name) if name.startswith("temp") else _populations(random)
        population = _pick(random, populations)
        reference, now = (populations[population](n) for n in (REFERENCE_ROWS, rows))
        changed = now * factor + shift
        if random.random() < 0.2:
            changed = changed.astype(np.float32).astype(float)
        yield Changed(name, f"{population}, {conversion}", reference, changed)
