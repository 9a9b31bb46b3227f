import { useMemo } from "react";
import { gather } from "src/pages/Schema/findings";
import { type AnomalousFeature, useReport, type ValidationEntry } from "src/pages/Schema/queries";

const NONE: readonly AnomalousFeature[] = [];

/** All features that a validation found anomalous: the list of validations has the first of very many. */
export function useAnomalous(validation: ValidationEntry | undefined): readonly AnomalousFeature[] {
  const known = validation?.features ?? NONE;
  const { data: report } = useReport(validation?.address, (validation?.features_total ?? 0) > known.length);
  return useMemo(
    () =>
      report === undefined
        ? known
        : gather(report).map(({ feature, severity, summaries, bySplit }) => ({
            feature,
            severity,
            summaries,
            splits: Object.keys(bySplit),
          })),
    [report, known],
  );
}
