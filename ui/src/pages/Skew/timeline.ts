/** What the timeline is made of: a row a feature, a column a comparison. */

import type { Schemas } from "src/api/client";

export type Timeline = Schemas["SkewTimeline"];
export type Check = Schemas["SkewCheck"];
export type Decision = Schemas["RetrainingDecision"];
export type Failure = Schemas["MonitorFailure"];
export type VersionEvent = Schemas["VersionEvent"];

/** A feature over all comparisons. Ratios are scores by their thresholds: above 1 is beyond the threshold. */
export interface FeatureRow {
  name: string;
  scores: (number | null)[];
  thresholds: (number | null)[];
  ratios: (number | null)[];
  /** By comparison, whether it was called drifted. */
  drifted: boolean[];
  now: number | null;
  worst: number | null;
  driftedCount: number;
  /** How many of the newest comparisons, one after the other, called it drifted. */
  streak: number;
  cause: string | null;
  effect: number | null;
  /** What the model predicts: the effect's units. */
  problem: string | null;
}

/** A score by its threshold; null where one of them is not known. */
export function ratioOf(score: number | null | undefined, threshold: number | null | undefined): number | null {
  if (score === null || score === undefined || threshold === null || threshold === undefined) {
    return null;
  }
  return threshold === 0 ? (score === 0 ? 0 : null) : score / threshold;
}

/** The rows of a timeline, in the API's order. */
export function featureRows({ features, checks }: Timeline): FeatureRow[] {
  const drifted = checks.map((check) => new Set(check.verdict === "insufficient" ? [] : check.drifted));
  const newest = checks.findLastIndex((check) => check.verdict !== "insufficient");
  return features.map(({ name, scores, thresholds }) => {
    const ratios = scores.map((score, index) => ratioOf(score, thresholds[index]));
    const called = drifted.map((names) => names.has(name));
    const known = ratios.filter((ratio) => ratio !== null);
    const compared = called.filter(
      (isDrifted, index) => isDrifted || (ratios[index] !== null && checks[index]?.verdict !== "insufficient"),
    );
    const last = compared.lastIndexOf(false);
    return {
      name,
      scores,
      thresholds,
      ratios,
      drifted: called,
      now: ratios[newest] ?? null,
      worst: known.length ? Math.max(...known) : null,
      driftedCount: called.filter(Boolean).length,
      streak: compared.length - 1 - last,
      cause: checks[newest]?.causes[name] ?? null,
      effect: checks[newest]?.effects[name] ?? null,
      problem: checks[newest]?.problem ?? null,
    };
  });
}

/** The feature to show first: the most moved one of the newest comparison. */
export function firstFeature({ checks }: Timeline, rows: readonly FeatureRow[]): string | null {
  const newest = checks.findLast((check) => check.verdict !== "insufficient");
  if (newest?.drifted[0] !== undefined) {
    return newest.drifted[0];
  }
  const ordered = [...rows].sort((a, b) => (b.now ?? -1) - (a.now ?? -1));
  return ordered[0]?.name ?? null;
}

export type TimeAxis = "data" | "wall";

/** The times of comparisons: of the data (the window's end), or when they were made. */
export function timesOf(checks: readonly Check[], axis: TimeAxis): number[] {
  return checks.map((check) => {
    const data = axis === "data" ? check.window_end : null;
    return new Date(data ?? check.at).getTime();
  });
}

/** Whether the data's own time is known of every comparison. */
export const knowsDataTime = (checks: readonly Check[]): boolean =>
  checks.length > 0 && checks.every(({ window_end }) => window_end !== null);

/**
 * Where a moment stands on the axis. On that of the data: between the comparisons that were made before and after it.
 */
export function placeOf(at: string, checks: readonly Check[], axis: TimeAxis): number {
  const moment = new Date(at).getTime();
  if (axis === "wall" || checks.length === 0) {
    return moment;
  }
  const made = timesOf(checks, "wall");
  const data = timesOf(checks, "data");
  const after = made.findIndex((time) => time >= moment);
  const end = data.at(-1) ?? moment;
  if (after <= 0) {
    return after === 0 ? (data[0] ?? moment) : end;
  }
  const [t0, t1, d0, d1] = [made[after - 1] ?? 0, made[after] ?? 0, data[after - 1] ?? 0, data[after] ?? 0];
  return t1 === t0 ? d1 : d0 + ((moment - t0) / (t1 - t0)) * (d1 - d0);
}
