"""Predicts how a data-parallel training scales, from figures of one GPU and of the network; measures nothing.

``benchmarks/scaling.py`` prints the tables of ``docs/explain/scaling.md``. Options describe a cluster of your own:
``benchmarks/scaling.py --parameters 138e6 --compute-ms 300 --between-gb-s 3``.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Cluster:
    """A training on a cluster of equal machines.

    Attributes:
        parameters: Parameters of the model.
        bytes_each: Bytes of a parameter's gradient in the exchange.
        compute_ms: Milliseconds of a step on one GPU, without exchange.
        overlap: Share of the computing during which gradients can be exchanged already.
        gpus_per_host: GPUs of a machine.
        within_gb_s: Bandwidth of a GPU to the others of its machine, in GB/s.
        between_gb_s: Bandwidth of a machine to others, in GB/s.
        within_us: Microseconds of a message between GPUs of a machine.
        between_us: Microseconds of a message between machines.
        spread: Standard deviation of a rank's time for a step, as a share of its mean.
        input_ms: Milliseconds in which a machine can read the rows of a step of all its GPUs.
    """

    parameters: float = 25.56e6
    bytes_each: int = 2
    compute_ms: float = 40
    overlap: float = 0.6
    gpus_per_host: int = 4
    within_gb_s: float = 50
    between_gb_s: float = 25
    within_us: float = 5
    between_us: float = 15
    spread: float = 0.01
    input_ms: float = 20

    def ring_ms(self, gpus: int) -> float:
        """Returns the time of an all-reduce in one ring: its latency grows with the number of GPUs."""
        if gpus == 1:
            return 0.0
        alone = gpus <= self.gpus_per_host
        bandwidth, latency = (self.within_gb_s, self.within_us) if alone else (self.between_gb_s, self.between_us)
        moved = 2 * (gpus - 1) / gpus * self.parameters * self.bytes_each
        return 2 * (gpus - 1) * latency / 1e3 + moved / bandwidth / 1e6

    def hierarchy_ms(self, gpus: int) -> float:
        """Returns the time of an all-reduce within machines, among them in a grid (2D torus), and within them again."""
        hosts, own = max(1, gpus // self.gpus_per_host), min(gpus, self.gpus_per_host)
        size = self.parameters * self.bytes_each
        within = 2 * (own - 1) * self.within_us / 1e3 + 2 * (own - 1) / own * size / self.within_gb_s / 1e6
        side = math.sqrt(hosts)
        among = 4 * (side - 1) * self.between_us / 1e3 + 2 * (hosts - 1) / hosts * size / self.between_gb_s / 1e6
        return within + among

    def parts_ms(self, gpus: int, exchange_ms: float) -> dict[str, float]:
        """Returns the milliseconds of a step on some GPUs beyond one GPU's, by cause.

        The slowest of n ranks, whose times are normally distributed, is about sqrt(2 ln n) deviations late.
        """
        late = self.compute_ms * self.spread * math.sqrt(2 * math.log(gpus))
        return {
            "exchange": max(0.0, exchange_ms - self.overlap * self.compute_ms),
            "stragglers": late,
            "input": max(0.0, self.input_ms - self.compute_ms),
        }

    def efficiency(self, gpus: int, exchange_ms: float) -> float:
        """Returns the rows per second and GPU on some GPUs, as a share of those of one."""
        return self.compute_ms / (self.compute_ms + sum(self.parts_ms(gpus, exchange_ms).values()))


# A half of the machine's cores each, over Gloo: docs/explain/performance.md
TWO_RANKS = Cluster(25_000, 4, 35, 0, 1, 2, 2, 500, 500, 0.005, 0)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for each in fields(Cluster):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(each.default), default=each.default)
    cluster = Cluster(**vars(parser.parse_args()))
    shapes = {
        "as given": cluster,
        "25 Gbit/s Ethernet": replace(cluster, between_gb_s=3.1, between_us=40),
        "a third of the work": replace(cluster, compute_ms=cluster.compute_ms / 3, input_ms=cluster.input_ms / 3),
        "ranks that vary by 5%": replace(cluster, spread=0.05),
        "reading takes 50 ms": replace(cluster, input_ms=50),
    }
    figures: dict[str, float] = {}
    print(f"{'':24}{'GPUs':>6}{'ring':>8}{'grid':>8}   lost in the grid, ms of a step")
    for name, each in shapes.items():
        for gpus in (8, 64, 256, 1024):
            ring, grid = each.ring_ms(gpus), each.hierarchy_ms(gpus)
            parts = ", ".join(f"{part} {ms:.1f}" for part, ms in each.parts_ms(gpus, grid).items())
            ring_share, grid_share = each.efficiency(gpus, ring), each.efficiency(gpus, grid)
            print(f"{name:24}{gpus:6}{ring_share:8.1%}{grid_share:8.1%}   {parts}")
            figures |= {f"{name}, {gpus}, ring": ring_share, f"{name}, {gpus}, grid": grid_share}
    print(f"two ranks of a CPU      {TWO_RANKS.efficiency(2, TWO_RANKS.ring_ms(2)):20.1%}")
    print(json.dumps({"ratios": {}, "figures": {name: round(value, 4) for name, value in figures.items()}}))


if __name__ == "__main__":
    main()
