/** Axes of charts over runs: a parameter or a metric, as numbers, their logarithm, or words. */

import { asNumber, type Compared, figureOf, type Names } from "src/pages/Runs/figures";

export interface RunAxis {
  /** `metrics.auc`, `params.lr`. */
  key: string;
  label: string;
  type: "value" | "log" | "category";
  /** The words of a category, in order. */
  words: string[];
}

const DECADES = 50;
const natural = new Intl.Collator("en", { numeric: true });

/** How a key's values are laid out: numbers over more than a decade and a half by their logarithm. */
export function axisOf(key: string, runs: readonly Compared[]): RunAxis {
  const values = runs.map((run) => figureOf(run, key)).filter((value) => value !== null);
  const numbers = values.map(asNumber).filter((value) => value !== null);
  const label = key.replace(/^(metrics|params)\./, "");
  if (numbers.length < values.length) {
    return { key, label, type: "category", words: [...new Set(values.map(String))].sort(natural.compare) };
  }
  const low = Math.min(...numbers);
  const isLog = key.startsWith("params.") && low > 0 && Math.max(...numbers) / low > DECADES;
  return { key, label, type: isLog ? "log" : "value", words: [] };
}

/** Keys that can be an axis, parameters first. */
export function axisKeys(names: Names): { value: string; label: string }[] {
  return [
    ...names.params.map((name) => ({ value: `params.${name}`, label: name })),
    ...names.metrics.map((name) => ({ value: `metrics.${name}`, label: name })),
    { value: "duration", label: "duration (s)" },
  ];
}
