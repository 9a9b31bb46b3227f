/** What the timeline is made of: a row a feature, a column a comparison. */

import type { Schemas } from "src/api/client";

export type Timeline = Schemas["SkewTimeline"];
export type Check = Schemas["SkewCheck"];
export type Decision = Schemas["MonitorDecision"];
export type Failure = Schemas["MonitorFailure"];
export type VersionEvent = Pick<Schemas["Decision"], "at" | "event" | "version"> & { model: string };

/** A feature over all comparisons; now is the newest comparison with enough rows. */
export interface FeatureRow {
  name: string;
  scores: (number | null)[];
  thresholds: (number | null)[];
  /** By comparison, whether it was called drifted. */
  drifted: boolean[];
  now: number | null;
  threshold: number | null;
  /** Its place among all features by how much it matters now: the drifted ones in their order, then by distance. */
  rank: number;
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

/** Index of the newest comparison with enough rows; -1 where there is none. */
export const newestOf = (checks: readonly Check[]): number =>
  checks.findLastIndex((check) => check.verdict !== "insufficient");

/** The rows of a timeline: what matters most now comes first. */
export function featureRows({ features, entries: checks }: Timeline): FeatureRow[] {
  const drifted = checks.map((check) => new Set(check.verdict === "insufficient" ? [] : check.drifted));
  const newest = newestOf(checks);
  const check = checks[newest];
  const place = new Map(check?.drifted.map((name, index) => [name, index]));
  const places = ({ name }: { name: string }) => place.get(name) ?? place.size;
  return Object.entries(features)
    .map(([name, [scores, thresholds]]) => {
      const called = drifted.map((names) => names.has(name));
      const compared = called.filter(
        (isDrifted, index) =>
          isDrifted || (typeof scores[index] === "number" && checks[index]?.verdict !== "insufficient"),
      );
      return {
        name,
        scores,
        thresholds,
        drifted: called,
        now: scores[newest] ?? null,
        threshold: thresholds[newest] ?? null,
        driftedCount: called.filter(Boolean).length,
        streak: compared.length - 1 - compared.lastIndexOf(false),
        cause: check?.causes[name] ?? null,
        effect: check?.effects[name] ?? null,
        problem: check?.problem ?? null,
      };
    })
    .sort((a, b) => places(a) - places(b) || (ratioOf(b.now, b.threshold) ?? -1) - (ratioOf(a.now, a.threshold) ?? -1))
    .map((row, rank) => ({ ...row, rank }));
}

/** What a reader of the newest comparison must know: it is not of the version that serves, or that is not known. */
export function doubtsOf({ entries, serving, problems }: Timeline): string[] {
  const newest = entries.at(-1);
  const version = newest?.model ? serving[newest.model] : null;
  const isOther = newest?.version && version && version !== newest.version;
  const checked = entries.some((each) => each.version === version) ? "" : " and has no comparison yet";
  const other = `The newest comparison is of v${newest?.version}, not of v${version}, which serves${checked}.`;
  return [...(isOther ? [other] : []), ...problems.map((each) => `Not known: ${each}`)];
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
