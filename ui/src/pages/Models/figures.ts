/** Figures of an evaluation: which there are, how good is good. */

import type { Schemas } from "src/api/client";

export type Figures = Schemas["SplitEvaluation"]["candidate"];

const HIGHER = new Set(["auc", "accuracy", "balanced_accuracy"]);
const LOWER = new Set(["log_loss", "brier"]);
const NOT_SHOWN = new Set(["rows", "reason"]);

/** A figure's number; null where it has none. */
export function numberOf(figures: Figures | null, name: string): number | null {
  const value: unknown = figures?.[name];
  return typeof value === "number" ? value : null;
}

/** The names of the figures that are numbers, without the ends of intervals. */
export function namesOf(figures: Figures): string[] {
  return Object.keys(figures).filter(
    (name) => !NOT_SHOWN.has(name) && !/_(low|high)$/.test(name) && typeof figures[name] === "number",
  );
}

/** Whether a difference of this metric is for the better (1), for the worse (-1), or neither. */
export function direction(name: string, difference: number | null): number {
  if (difference === null || difference === 0) {
    return 0;
  }
  return HIGHER.has(name) ? Math.sign(difference) : LOWER.has(name) ? -Math.sign(difference) : 0;
}

/** The colour of a difference, by the word for it. */
export function toneOf(better: number): string | undefined {
  return better > 0 ? "fg.success" : better < 0 ? "fg.error" : undefined;
}
