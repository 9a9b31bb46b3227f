/** What the large chart shows, and how far its axis of time reaches. */

import type { Schemas } from "src/api/client";
import type { ChartTheme } from "src/components/chart/theme";
import type { Check, Failure, FeatureRow, TimeAxis, VersionEvent } from "src/pages/Skew/timeline";
import type { ArtifactRef } from "src/routes";

export type Measured = "score" | "p" | "missing";

const DAY_MS = 86_400_000;

export interface Shown {
  row: FeatureRow;
  checks: readonly Check[];
  /** Of each comparison, where its report is there. */
  points: readonly (Schemas["FeaturePoint"] | undefined)[];
  events: readonly VersionEvent[];
  failures: readonly Failure[];
  measured: Measured;
  axis: TimeAxis;
  /** Share of false discoveries that was allowed; null where thresholds alone decide. */
  alpha: number | null;
  chosen: ArtifactRef | null;
  zone: string;
  theme: ChartTheme;
}

/** The axis ends a little beyond the data, and a day beyond where there is one moment only. */
export function padded(times: readonly number[], side: -1 | 1): number {
  const low = Math.min(...times);
  const high = Math.max(...times);
  const room = (high - low) * 0.03 || DAY_MS;
  return side < 0 ? low - room : high + room;
}
