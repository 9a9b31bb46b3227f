/** What the API's words mean. */

import { formatNumber, formatPercent } from "src/format";
import type { Decision } from "src/pages/Skew/timeline";

const CAUSES: Record<string, string> = {
  all_missing: "It has no value any more: what feeds it looks broken.",
  constant: "It has one value only, which few rows of the reference have: what feeds it looks broken.",
  unit_change: "Its values look like the reference's in another unit: what feeds it looks broken.",
  new_category: "Many of its values were never seen in the reference: what feeds it looks broken.",
  missing_rate: "The share of missing values has changed.",
  covariate_shift: "Its values have moved, as when the world changes.",
};

/** A cause in a sentence. */
export const causeInWords = (cause: string): string => CAUSES[cause] ?? cause;

/** Causes in a word or two, for a table. */
export const CAUSE_LABELS: Record<string, string> = {
  all_missing: "all missing",
  constant: "constant",
  unit_change: "another unit",
  new_category: "new values",
  missing_rate: "missing values",
  covariate_shift: "values moved",
};

/** Causes that look like a broken pipeline, not like the world changing. */
export const FAULTS = new Set(["all_missing", "constant", "unit_change", "new_category"]);

/** Verdicts in a sentence. */
export const VERDICTS: Record<string, string> = {
  stable: "No feature has moved by more than chance and thresholds allow.",
  drift: "Features have moved.",
  pipeline_fault:
    "Something that feeds the model looks broken. A retraining would learn the fault, so none is requested.",
  insufficient: "There were too few rows for a verdict.",
};

/** The state of {@link StateBadge} that a verdict looks like. */
export const VERDICT_STATES: Record<string, string> = {
  stable: "ok",
  drift: "drift",
  pipeline_fault: "broken",
  insufficient: "none",
};

const REFUSALS: Record<string, string> = {
  verdict: "nothing to retrain for",
  pipeline_fault: "a fault is not to be learnt from",
  rollout: "a version is being rolled out",
  cooldown: "requested before, within the cooldown",
};

/** A decision in a few words. */
export function decisionLabel(decision: Decision): string {
  switch (decision.outcome) {
    case "requested":
      return "Retraining requested";
    case "refused":
      return `No retraining: ${REFUSALS[decision.why ?? ""] ?? "the reason was not kept"}`;
    case "failed":
      return "The request for a retraining failed";
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
  undeployed: "taken out",
  left: "left as it was",
};

/** An effect on predictions, or its error: of a number in its units, else in points of a hundred. */
export function formatEffect(effect: number | null, problem: string | null, digits = 3): string {
  return problem === "regression" ? formatNumber(effect, digits) : formatPercent(effect, digits);
}

/** An effect on predictions in words: an average change of a prediction. */
export function effectInWords(effect: number, signed: number | null, problem: string | null): string {
  const direction = signed === null || signed === 0 ? "" : signed > 0 ? ", upwards" : ", downwards";
  const size = formatEffect(effect, problem).replace("%", " points");
  return `moves a prediction by ${size} on average${direction}`;
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

/** A score by its threshold: `3.4×`. */
export const formatRatio = (ratio: number | null | undefined): string =>
  ratio === null || ratio === undefined ? "–" : `${formatNumber(ratio, ratio >= 10 ? 3 : 2)}×`;
