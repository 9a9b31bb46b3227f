/** Decisions in words. */

import type { Schemas } from "src/api/client";
import { formatCount } from "src/format";
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
  rmse: "RMSE",
  mae: "MAE",
  r2: "R²",
  macro_f1: "macro F1",
  weighted_f1: "weighted F1",
};

/** Metrics' names for people: `log_loss` as `log loss`, `auc` as `AUC`. */
export function metricLabel(name: string): string {
  return METRICS[name] ?? name.replaceAll("_", " ");
}
