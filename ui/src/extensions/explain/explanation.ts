/** What an explanation says, in the order and words of its page. */

import type { Schemas } from "airflow-hops";

export type Explanation = Schemas["Explanation"];
export type Importance = Schemas["FeatureImportance"];
export type Dependence = Schemas["Dependence"];
export type ExplainedRow = Schemas["ExplainedRow"];

/** Features that the candidate looks at beyond chance, and the champion not, or clearly less. */
export function newlyUsed(report: Explanation): string[] {
  return report.champion === null
    ? []
    : report.importance
        .filter(({ candidate, champion, is_beyond_chance }) => {
          const isUnused = (champion?.[1] ?? 0) <= 0;
          return is_beyond_chance && isUnused && (candidate?.[1] ?? 0) > (champion?.[2] ?? 0);
        })
        .map(({ feature }) => feature);
}

/** Features that the champion looks at, and the candidate does not have or does not look at. */
export function noLongerUsed({ importance }: Explanation): string[] {
  return importance
    .filter(({ champion, is_beyond_chance }) => !is_beyond_chance && (champion?.[1] ?? 0) > 0)
    .map(({ feature }) => feature);
}

/** A bar of the waterfall: from one level of the prediction to the next. */
export interface Step {
  label: string;
  value: string;
  contribution: number;
  error: number;
  from: number;
  to: number;
}

/** The way from the background's mean prediction to the row's, the strongest reason first. */
export function stepsOf(row: ExplainedRow): Step[] {
  const reasons = row.reasons.map(({ feature, value, contribution, error }) => ({
    label: feature,
    value: value ?? "missing",
    contribution,
    error,
  }));
  const others = row.rest === 0 ? [] : [{ label: "all others", value: "", contribution: row.rest, error: 0 }];
  let level = row.base;
  return [...reasons, ...others].map((each) => {
    const from = level;
    level += each.contribution;
    return { ...each, from, to: level };
  });
}
