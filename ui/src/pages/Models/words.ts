/** Decisions in words. */

import type { Schemas } from "src/api/client";
import { formatCount, formatNumber } from "src/format";
import type { Decision } from "src/pages/Models/queries";

const TITLES: Record<string, (decision: Decision) => string> = {
  deployed: ({ version }) => `Version ${version} deployed as champion`,
  canary: ({ version }) => `Version ${version} deployed as canary`,
  step: ({ version, percent }) => `Version ${version} passed ${percent}%`,
  approved: ({ version }) => `Version ${version} approved`,
  traffic: () => "Traffic set",
  promoted: ({ version }) => `Version ${version} promoted`,
  rolled_back: ({ version, to }) => `Version ${version} rolled back${to ? ` to version ${to}` : ""}`,
  left: ({ version }) => `Version ${version} left as it is`,
  owners: () => "Owners changed",
  undeployed: ({ version }) => `Version ${version} undeployed`,
};

/** What was decided: `Version 2 promoted`. */
export function titleOf(decision: Decision): string {
  return TITLES[decision.event]?.(decision) ?? `Version ${decision.version}: ${decision.event.replaceAll("_", " ")}`;
}

/** Shares in words: `v1 80% · v2 20%`. */
export function sharesInWords(traffic: Readonly<Record<string, number>>): string {
  const shares = Object.entries(traffic).filter(([, percent]) => percent > 0);
  return shares.map(([version, percent]) => `v${version} ${percent}%`).join(" · ") || "no traffic";
}

/** What a version was asked: `120 requests, 1 failed, 2 refused`; refused are the clients' mistakes. */
export function askedInWords(counts: Schemas["AskedCounts"] | null): string {
  const { requests, errors, client_errors: refused } = counts ?? { requests: null, errors: null, client_errors: 0 };
  return `${formatCount(requests)} requests, ${formatCount(errors)} failed${refused ? `, ${formatCount(refused)} refused` : ""}`;
}

const METRICS: Readonly<Record<string, string>> = {
  auc: "AUC",
  brier: "Brier score",
  f1: "F1",
  mae: "MAE",
  mse: "MSE",
  r2: "R²",
  rmse: "RMSE",
};
const LONG = /(log_loss|(balanced|median|worst|macro|weighted|average)_(accuracy|absolute_error|auc|f1|precision))\b/g;
const KNOWN = new RegExp(`(?<![a-z])(${Object.keys(METRICS).join("|")})(?![a-z])`, "g");

/** A sentence with metrics' names as people write them: `eval: AUC 0.7210 is at least 0.6`. */
export const metricsInWords = (text: string): string =>
  text.replace(LONG, (name) => name.replaceAll("_", " ")).replace(KNOWN, (name) => METRICS[name] ?? name);

/** Metrics' names for people: `log_loss` as `log loss`, `evaluation.eval_auc` as `eval AUC`. */
export const metricLabel = (name: string): string =>
  metricsInWords(name.replace(/^evaluation\./, "").replace(/[._]/g, " "));

const SMALLER_IS_BETTER = /loss|error|brier|(^|[_.])(mae|mse|rmse|seconds|latency)|perplexity/i;

/** Whether less of a metric is better. */
export const isLoss = (metric: string): boolean => SMALLER_IS_BETTER.test(metric);

/** A metric's name in a heading, with an arrow if less of it is better. */
export const metricHeading = (name: string): string => `${metricLabel(name)}${isLoss(name) ? " ↓" : ""}`;

/** A gain and its direction: `+0.0316 better`. */
export function gainInWords(gain: number | null, better = Math.sign(gain ?? 0)): string {
  const signed = gain !== null && gain > 0 ? `+${formatNumber(gain, 3)}` : formatNumber(gain, 3).replace("-", "−");
  return `${signed}${better > 0 ? " better" : better < 0 ? " worse" : ""}`;
}
