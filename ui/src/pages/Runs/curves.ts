/** Learning curves: which belong into one chart, smoothed, over steps or time. */

import type { Schemas } from "src/api/client";

export type Curve = Schemas["MetricCurve"];
export type XAxis = "step" | "relative" | "time";

/** Curves of one figure: training's, and validation's beside it. */
export interface Figure {
  name: string;
  curves: Curve[];
}

const VALIDATION = "val_";

export const isValidation = (metric: string): boolean => metric.startsWith(VALIDATION);

/** The figures that any run has at more than one step; loss first. */
export function figuresOf(curves: readonly Curve[]): Figure[] {
  const figures = new Map<string, Curve[]>();
  for (const curve of curves) {
    const name = isValidation(curve.metric) ? curve.metric.slice(VALIDATION.length) : curve.metric;
    figures.set(name, [...(figures.get(name) ?? []), curve]);
  }
  return [...figures]
    .filter(([, all]) => all.some(({ steps }) => new Set(steps).size > 1))
    .map(([name, all]) => ({ name, curves: all }))
    .sort((a, b) => Number(b.name === "loss") - Number(a.name === "loss") || a.name.localeCompare(b.name));
}

/** Points of a curve: x as chosen (time in milliseconds, relative in seconds from the run's start), y or a gap. */
export function pointsOf(curve: Curve, axis: XAxis, startedAt: number): [number, number | null][] {
  return curve.values.map((value, index) => {
    const at = curve.times[index] ?? startedAt;
    const x = axis === "step" ? (curve.steps[index] ?? index) : axis === "time" ? at : (at - startedAt) / 1000;
    return [x, value];
  });
}

/**
 * An exponential moving average without its bias to the first value, as TensorBoard's: `weight` 0 leaves the curve as
 * it is, towards 1 it becomes flat. Gaps stay gaps.
 */
export function smooth(points: readonly [number, number | null][], weight: number): [number, number | null][] {
  let average = 0;
  let seen = 0;
  return points.map(([x, y]) => {
    if (y === null) {
      return [x, null];
    }
    seen += 1;
    average = average * weight + y * (1 - weight);
    return [x, average / (1 - weight ** seen)];
  });
}
