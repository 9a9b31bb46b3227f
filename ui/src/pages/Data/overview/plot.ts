/** How distributions are drawn: what the address says. */

import { useMemo } from "react";
import { useQueryFlag, useQueryParam } from "src/hooks/useQueryState";

export interface PlotStyle {
  /** Histograms, or quantiles along a line. */
  chart: "histogram" | "quantiles";
  /** Whether heights are logarithmic. */
  log: boolean;
  /** Whether heights are counts; else each data set is a hundred percent. */
  counts: boolean;
}

/** The style, and how to change it. */
export function usePlotStyle(): PlotStyle & {
  setChart: (chart: string) => void;
  setLog: (log: boolean) => void;
  setCounts: (counts: boolean) => void;
} {
  const [chart, setChart] = useQueryParam("chart", "histogram");
  const [log, setLog] = useQueryFlag("log");
  const [counts, setCounts] = useQueryFlag("counts");
  return useMemo(
    () => ({ chart: chart === "quantiles" ? "quantiles" : "histogram", log, counts, setChart, setLog, setCounts }),
    [chart, log, counts, setChart, setLog, setCounts],
  );
}
