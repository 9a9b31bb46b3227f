/** Figures of an evaluation: which there are, how good is good, and what a picture of them shows. */

import type { Schemas } from "src/api/client";
import { type Color, ERROR } from "src/components/colors";

export type Figures = Schemas["Figures"]["candidate"];
export type Slice = Schemas["Figures"];
export type Split = Schemas["Figures"] & { name: string };
/** By metric, whether more of it is better. */
export type Directions = Readonly<Record<string, boolean>>;

/** Of evaluations that do not say it themselves. */
const HIGHER: Directions = {
  auc: true,
  average_precision: true,
  worst_auc: true,
  accuracy: true,
  balanced_accuracy: true,
  log_loss: false,
  brier: false,
};
const NOT_SHOWN = new Set(["rows", "weight", "reason"]);
/** Figures that are in the label's units. */
const IN_UNITS = new Set(["rmse", "mae", "median_absolute_error", "mean_prediction", "mean_label"]);

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

/** The splits of a label's evaluation, with their names. */
export const splitsOf = ({ splits }: Pick<Schemas["LabelReport"], "splits">): Split[] =>
  Object.entries(splits).map(([name, figures]) => ({ ...figures, name }));

/** What an evaluation's rule says of its metrics. */
export function directionsOf(rule: Schemas["LabelReport"]["rule"]): Directions {
  const told = rule.higher_is_better as Directions | null | undefined;
  return { ...HIGHER, ...told };
}

/** Whether a difference of this metric is for the better (1), for the worse (-1), or neither. */
export function direction(name: string, difference: number | null, higher: Directions = HIGHER): number {
  const isHigher = higher[name];
  if (difference === null || difference === 0 || isHigher === undefined) {
    return 0;
  }
  return isHigher ? Math.sign(difference) : -Math.sign(difference);
}

/** The colour of a difference, by the word for it. */
export function toneOf(better: number): Color {
  return better > 0 ? "fg.success" : better < 0 ? ERROR : undefined;
}

/** Which of the figures are in the label's units, where it is a number that is predicted. */
export function inUnits(problem: string | null, names: readonly string[]): string[] {
  return problem === "regression" ? names.filter((name) => IN_UNITS.has(name)) : [];
}

export interface CalibrationBin {
  rows: number;
  predicted: number;
  observed: number;
}

/** Bins of similar predictions, the lowest first; none in evaluations of earlier versions. */
export function calibrationOf(figures: Figures | null): CalibrationBin[] {
  return listOf<CalibrationBin>(figures, "calibration");
}

export interface ClassRow {
  name: string;
  rows: number;
  recall: number | null;
  precision: number | null;
  f1?: number | null;
  auc?: number | null;
}

/** Figures by class. */
export function classesOf(figures: Figures | null): ClassRow[] {
  return listOf<ClassRow>(figures, "classes");
}

/** By class, how many of its rows are said to be of each; none where there are more than a hundred classes. */
export function confusionOf(figures: Figures): number[][] {
  return listOf<number[]>(figures, "confusion");
}

export interface Confusion {
  /** What the rows are. */
  name: string;
  /** What they are said to be. */
  said: string;
  rows: number;
  /** Of the rows of the class. */
  share: number;
}

/** The classes that are taken for others, the most frequent mistake first. */
export function mistakesOf(names: readonly string[], confusion: readonly (readonly number[])[]): Confusion[] {
  return confusion
    .flatMap((row, of) => {
      const total = row.reduce((sum, count) => sum + count, 0);
      return row.map((rows, as) => ({
        name: names[of] ?? "",
        said: names[as] ?? "",
        rows,
        share: rows / total,
        of,
        as,
      }));
    })
    .filter(({ rows, of, as }) => of !== as && rows > 0)
    .sort((a, b) => b.rows - a.rows)
    .map(({ name, said, rows, share }) => ({ name, said, rows, share }));
}

/** Quantiles of label less prediction, as `[percent, value]`, the lowest first; none but of a regression. */
export function residualsOf(figures: Figures | null): [percent: number, value: number][] {
  const found = (figures?.residual_quantiles ?? {}) as Readonly<Record<string, number>>;
  return Object.entries(found)
    .map(([percent, value]): [number, number] => [Number(percent), value])
    .sort(([a], [b]) => a - b);
}

function listOf<Item>(figures: Figures | null, name: string): Item[] {
  const found: unknown = figures?.[name];
  return Array.isArray(found) ? (found as Item[]) : [];
}
