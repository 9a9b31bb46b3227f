/** What the charts and tables of one feature are made of. */

import type { Schemas } from "src/api/client";
import type { Shown } from "src/pages/Data/overview/datasets";

export type Detail = Schemas["FeatureDetail"];

/** A data set that has the feature, and what it says of it. */
export interface Side {
  dataset: Shown;
  detail: Detail;
}

type Curve = Schemas["DistributionFunction"];

/** The share of the values up to and including `x`: linear between knots, a jump where one is repeated. */
function shareUpTo({ values: xs, shares }: Curve, x: number): number {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((xs[middle] ?? 0) <= x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low === 0) {
    return 0;
  }
  if (low === xs.length) {
    return 1;
  }
  const [x0, x1] = [xs[low - 1] ?? 0, xs[low] ?? 0];
  const [f0, f1] = [shares[low - 1] ?? 0, shares[low] ?? 0];
  return f0 + ((f1 - f0) * (x - x0)) / (x1 - x0);
}

/** The value below which a share of the values lie. */
export function valueAt({ values: xs, shares }: Curve, share: number): number {
  const after = shares.findIndex((each) => each >= share);
  if (after <= 0) {
    return xs[Math.max(after, 0)] ?? Number.NaN;
  }
  const [x0, x1] = [xs[after - 1] ?? 0, xs[after] ?? 0];
  const [f0, f1] = [shares[after - 1] ?? 0, shares[after] ?? 0];
  return f1 > f0 ? x0 + ((x1 - x0) * (share - f0)) / (f1 - f0) : x1;
}

/** Boundaries of buckets over the range of all curves: equally wide, of few integers one bucket each. */
export function edgesOf(curves: readonly Curve[], integers: boolean, buckets: number): number[] {
  const low = Math.min(...curves.map(({ values }) => values[0] ?? Number.POSITIVE_INFINITY));
  const high = Math.max(...curves.map(({ values }) => values.at(-1) ?? Number.NEGATIVE_INFINITY));
  if (integers && high - low < Math.max(buckets, 2)) {
    return Array.from({ length: high - low + 2 }, (_, index) => low - 0.5 + index);
  }
  if (low === high) {
    return [low - 0.5, high + 0.5];
  }
  return Array.from({ length: buckets + 1 }, (_, index) => low + ((high - low) * index) / buckets);
}

/** The share of the values in each bucket; what equals the least value is in the first. */
export function sharesIn(curve: Curve, edges: readonly number[]): number[] {
  const upTo = edges.map((edge, index) => (index === 0 ? 0 : shareUpTo(curve, edge)));
  return upTo.slice(1).map((share, index) => Math.max(share - (upTo[index] ?? 0), 0));
}

/** Values of all data sets, the most frequent of the first ones first, with their counts in each. */
export function valuesOf(sides: readonly Side[]): { value: string; counts: (number | null)[] }[] {
  const counts = sides.map(({ detail }) => new Map(detail.values));
  const values = new Set(counts.flatMap((each) => [...each.keys()]));
  const found = [...values].map((value) => ({ value, counts: counts.map((each) => each.get(value) ?? null) }));
  const rank = ({ counts: each }: { counts: (number | null)[] }) => each.find((count) => count !== null) ?? 0;
  return found.sort((a, b) => Number(b.counts[0] !== null) - Number(a.counts[0] !== null) || rank(b) - rank(a));
}

/** How many values there are, those of lists counted each. */
export const valueCount = ({ count, values_per_row: perRow }: Detail): number => (count ?? 0) * (perRow?.[1] ?? 1);
