import { useChartTheme } from "airflow-hops";
import { useMemo } from "react";
import type { Report } from "src/extensions/replay/report";

/** The colour of each policy of a report, by name: the same on all of its pictures. */
export function usePolicyColors({ policies, best }: Report): ReadonlyMap<string, string> {
  const { series, muted } = useChartTheme();
  return useMemo(() => {
    const colors = policies.map(({ name }, place): [string, string] => [name, series[place % series.length] ?? muted]);
    return new Map([...colors, ...(best ? [[best.name, muted] as const] : [])]);
  }, [policies, best, series, muted]);
}
