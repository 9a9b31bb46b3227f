/** What the API's words mean. */

import type { Schemas } from "src/api/client";
import { formatNumber, formatPercent } from "src/format";
import { metricsInWords } from "src/pages/Models/words";
import type { Decision } from "src/pages/Skew/timeline";

const CAUSES: Record<string, string> = {
  all_missing: "The feature no longer has values: its source looks broken.",
  other_type: "The feature has another type than in the reference: its source looks broken.",
  constant: "All values are the same, and few rows of the reference have that value: its source looks broken.",
  unit_change: "The values look like those of the reference in another unit: its source looks broken.",
  swapped: "The values are those of another feature: columns look swapped.",
  new_category: "Many values never occur in the reference: its source looks broken.",
  missing_rate: "The share of missing values has changed.",
  covariate_shift: "The values have shifted, as happens when the world changes.",
};

/** A cause in a sentence. */
export const causeInWords = (cause: string): string => CAUSES[cause] ?? cause;

/** Causes in a word or two. */
export const CAUSE_LABELS: Record<string, string> = {
  all_missing: "all missing",
  other_type: "another type",
  constant: "constant",
  unit_change: "another unit",
  swapped: "another column",
  new_category: "new values",
  missing_rate: "missing values",
  covariate_shift: "values shifted",
};

/** Causes that look like a broken pipeline, not like the world changing. */
export const FAULTS = new Set(["all_missing", "other_type", "constant", "unit_change", "swapped", "new_category"]);

/** Verdicts in a sentence. */
export const VERDICTS: Record<string, string> = {
  stable: "No feature has drifted.",
  drift: "Features have drifted.",
  pipeline_fault:
    "A source of the model's features looks broken. Retraining would learn the fault, so it is not requested.",
  insufficient: "Too few rows for a verdict.",
};

/** The state of {@link StateBadge} that a verdict looks like. */
export const VERDICT_STATES: Record<string, string> = {
  stable: "ok",
  drift: "drift",
  pipeline_fault: "broken",
  insufficient: "none",
};

const REFUSALS: Record<string, string> = {
  verdict: "no reason to retrain",
  pipeline_fault: "the data looks faulty",
  monitor: "the monitor itself is faulty",
  drift: "drift forbids it",
  prediction_drift: "drift of the predictions forbids it",
  performance: "the performance forbids it",
  age: "the champion's age forbids it",
  new_rows: "the number of new rows forbids it",
  rollout: "a version is being rolled out",
  rejected: "no candidate became champion; a person must look",
  in_flight: "one is under way",
  no_new_rows: "there are no new rows to train on",
  cooldown: "already requested within the cooldown",
  budget: "the budget is spent",
  person: "a person refused",
};

const refusalInWords = (why: string | null): string =>
  why ? (REFUSALS[why] ?? why.replaceAll("_", " ")) : "the reason was not recorded";

/** Refusals that a person should know of. */
export const STOPS = new Set(["pipeline_fault", "monitor", "rejected", "budget"]);

/** Whether people were told with a decision that requests have stopped. */
export const toldOfStop = (decision: Decision): boolean => decision.notified.includes("stop");

const TOLD: Record<string, string> = {
  drift: "that drift began",
  request: "of the request",
  stop: "that requests have stopped",
};

/** What people were told of; empty for nothing. */
export const toldInWords = ({ notified }: Decision): string =>
  notified.length > 0 ? `People were notified ${notified.map((each) => TOLD[each] ?? each).join(" and ")}.` : "";

/** Limits and conditions of a decision, a line each: those that hold first. */
export function decisionLines(decision: Decision): string[] {
  const { conditions, limits } = decision;
  const told = conditions.toSorted((a, b) => Number(b.held) - Number(a.held) || Number(a.forbids) - Number(b.forbids));
  return [
    ...told.map(({ forbids, held, text }) => `${held ? (forbids ? "✗" : "✓") : "·"} ${metricsInWords(text)}`),
    ...limits.map((text) => `· ${text}`),
  ];
}

/** A decision in a few words. */
export function decisionLabel(decision: Decision): string {
  switch (decision.outcome) {
    case "requested":
      return "Retraining requested";
    case "refused":
      return `No retraining: ${refusalInWords(decision.why)}`;
    case "failed":
      return "The request to retrain failed";
    default:
      return "Not decided yet";
  }
}

/** What came of a version. */
export const EVENTS: Record<string, string> = {
  deployed: "deployed",
  canary: "began as a canary",
  promoted: "promoted",
  rolled_back: "rolled back",
  undeployed: "undeployed",
  left: "left unchanged",
};

/** A prediction, an effect on predictions, or its error: of a number in its units, else in points of a hundred. */
export function formatEffect(effect: number | null, problem: string | null, digits = 3): string {
  return problem === "regression" ? formatNumber(effect, digits) : formatPercent(effect, digits);
}

/** An effect on predictions in words: of the mean, or, where that is not known or hardly moves, of each. */
export function effectInWords(effect: number, signed: number | null, problem: string | null): string {
  const size = (value: number) => formatEffect(Math.abs(value), problem, 2).replace("%", " points");
  return signed !== null && Math.abs(signed) > effect / 2
    ? `${signed > 0 ? "raises" : "lowers"} the mean prediction by ${size(signed)}`
    : `moves a prediction by ${size(effect)} on average`;
}

/** A summary as the report writes it, with what was before what is: `median 24.08 → 55.94`. */
const fromTo = (summary: string): string =>
  summary
    .replace(/(median(?: norm)?) ([^,;:]+), ([^,;:]+) in the reference/g, "$1 $3 → $2")
    .replace(/in (\S+%) of the rows, (\S+%) in the reference/g, "in $2 → $1 of the rows");

/** A feature's change in a line: `another unit (Celsius to kelvin): median 7 → 280; raises …`. */
export function changeInWords(
  found: Pick<Schemas["FeatureFigures"], "drifted" | "cause" | "detail" | "summary" | "effect" | "effect_signed">,
  problem: string | null,
): string {
  const { cause, detail, summary, effect } = found;
  const named = cause !== null && (FAULTS.has(cause) || summary === null);
  const label = named && `${CAUSE_LABELS[cause] ?? cause}${detail ? ` (${detail})` : ""}`;
  const change = [label, summary && fromTo(summary)].filter(Boolean).join(": ");
  const moves = found.drifted && effect !== null && effectInWords(effect, found.effect_signed, problem);
  return [change, moves].filter(Boolean).join("; ");
}

const CLASSES = 3;

/** The classes that an effect makes likelier and less likely, the most moved first: `cat +3.1 points`. */
export function classesInWords(byClass: Readonly<Record<string, number | null>>): string {
  return Object.entries(byClass)
    .filter((entry): entry is [string, number] => entry[1] !== null && entry[1] !== 0)
    .sort(([, a], [, b]) => Math.abs(b) - Math.abs(a))
    .slice(0, CLASSES)
    .map(
      ([name, change]) => `${name} ${change > 0 ? "+" : "−"}${formatPercent(Math.abs(change)).replace("%", " points")}`,
    )
    .join(", ");
}
