/** The anomalies of a report by feature. */

import type { ValidationReport } from "src/pages/Schema/queries";

/** How the step calls what fits the schema, and has moved. */
const DRIFT = "Drift since the champion was trained";

export type Reason = ValidationReport["anomalies"][number]["reasons"][number];

/** What was found of a feature, in all splits. */
export interface Finding {
  /** Empty for the data set as a whole. */
  feature: string;
  severity: "error" | "warning";
  /** Whether it fits the schema, and has only moved since the champion was trained. */
  drifted: boolean;
  summaries: string[];
  values: string[];
  valuesCount: number;
  bySplit: Record<string, { severity: "error" | "warning"; reasons: Reason[]; rows: number | null; exact: boolean }>;
}

/** The findings of a report by feature, errors first. */
export function gather(report: ValidationReport): Finding[] {
  const found = new Map<string, Finding>();
  for (const { feature, split, severity, reasons } of report.anomalies) {
    const finding: Finding = found.get(feature) ?? {
      feature,
      severity,
      drifted: true,
      summaries: [],
      values: [],
      valuesCount: 0,
      bySplit: {},
    };
    found.set(feature, finding);
    finding.severity = finding.severity === "error" ? "error" : severity;
    finding.drifted &&= reasons.every(({ summary }) => summary === DRIFT);
    finding.summaries = [...new Set([...finding.summaries, ...reasons.map(({ summary }) => summary)])];
    finding.values = [
      ...new Set([...finding.values, ...reasons.flatMap(({ values }) => values.map((each) => each.value))]),
    ];
    finding.valuesCount = Math.max(finding.values.length, ...reasons.map(({ values_count }) => values_count));
    const counted = reasons.flatMap(({ rows }) => (rows === null ? [] : [rows]));
    finding.bySplit[split] = {
      severity,
      reasons,
      rows: counted.length ? Math.max(...counted) : null,
      exact: reasons.every(({ is_exact }) => is_exact),
    };
  }
  return [...found.values()].sort((one, other) => rankOf(other) - rankOf(one) || +one.drifted - +other.drifted);
}

/** Errors before warnings. */
export const rankOf = ({ severity }: Finding): number => (severity === "error" ? 1 : 0);
