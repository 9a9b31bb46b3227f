/** Rates and latencies of a series' last steps, of one version or all. */

import type { Schemas } from "src/api/client";

type Series = Schemas["Series"];
type VersionSeries = Schemas["VersionSeries"];

export interface Rates {
  seconds: number;
  requests: number;
  /** Requests that failed. */
  errors: number;
  /** Requests that were refused as the client's mistake. */
  refused: number;
  perSecond: number | null;
  /** Of 1; null without requests. */
  errorShare: number | null;
  refusedShare: number | null;
  /** Milliseconds: the mean of the steps' medians, each by its requests. */
  p50: number | null;
  /** Milliseconds: the mean of the steps' 99th percentiles, each by its requests. */
  p99: number | null;
  /** Milliseconds: the highest of them. */
  worst: number | null;
}

/** The mean of the steps' latencies, each by its requests. */
function mean(
  series: readonly VersionSeries[],
  column: "latency_ms_p50" | "latency_ms_p99",
  from: number,
): number | null {
  let sum = 0;
  let weight = 0;
  for (const each of series) {
    for (let index = from; index < each.requests.length; index++) {
      const value = each[column][index];
      const count = each.requests[index] ?? 0;
      if (value !== null && value !== undefined) {
        sum += value * count;
        weight += count;
      }
    }
  }
  return weight ? sum / weight : null;
}

function total(
  series: readonly VersionSeries[],
  column: "requests" | "errors" | "client_errors",
  from: number,
): number {
  return series.reduce((sum, each) => sum + each[column].slice(from).reduce((a, b) => a + b, 0), 0);
}

/** What happened in the last so many minutes. */
export function ratesOf(series: Series, minutes: number, version?: number): Rates {
  const now = series.at.at(-1) ?? 0;
  const first = series.at.findIndex((at) => at > now - 60 * minutes);
  const from = first < 0 ? series.at.length : first;
  const chosen = series.versions.filter((each) => version === undefined || each.version === version);
  const seconds = series.seconds.slice(from).reduce((a, b) => a + b, 0);
  const requests = total(chosen, "requests", from);
  const errors = total(chosen, "errors", from);
  const refused = total(chosen, "client_errors", from);
  const highest = chosen.flatMap(({ latency_ms_p99 }) => latency_ms_p99.slice(from)).filter((value) => value !== null);
  return {
    seconds,
    requests,
    errors,
    refused,
    perSecond: seconds ? requests / seconds : null,
    errorShare: requests ? errors / requests : null,
    refusedShare: requests ? refused / requests : null,
    p50: mean(chosen, "latency_ms_p50", from),
    p99: mean(chosen, "latency_ms_p99", from),
    worst: highest.length ? Math.max(...highest) : null,
  };
}
