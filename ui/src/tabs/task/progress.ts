/** What a step's reports say: how far it is, how long it still takes, its figures as curves. */

import type { Schemas } from "src/api/client";
import type { Curve } from "src/pages/Runs/curves";

type Report = Schemas["ProgressPoint"];

/** Seconds that are left if it goes on as it did between the first report and the last; null before that is known. */
export function secondsLeft(reports: readonly Report[], now: number): number | null {
  const told = reports.filter(({ progress }) => progress !== null);
  const [first, last] = [told[0], told.at(-1)];
  if (!first || !last || first.progress === null || last.progress === null || last.progress <= first.progress) {
    return null;
  }
  const rate = (last.progress - first.progress) / (last.at - first.at);
  return Math.max((1 - last.progress) / rate - (now / 1000 - last.at), 0);
}

/** The figures of the reports as curves: over epochs where these are named, else one step a report. */
export function curvesOf(reports: readonly Report[]): Curve[] {
  const curves = new Map<string, Curve>();
  let step = 0;
  for (const { at, text, metrics } of reports) {
    const names = Object.entries(metrics);
    if (names.length === 0) {
      continue;
    }
    step = Number(/^(?:epoch|step) (\d+)/.exec(text)?.[1] ?? step + 1);
    for (const [metric, value] of names) {
      const curve = curves.get(metric) ?? { run_id: "task", metric, points: 0, steps: [], values: [], times: [] };
      curve.steps.push(step);
      curve.values.push(value);
      curve.times.push(at * 1000);
      curve.points += 1;
      curves.set(metric, curve);
    }
  }
  return [...curves.values()];
}
