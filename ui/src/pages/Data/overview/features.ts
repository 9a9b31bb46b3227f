/** The features of several data sets side by side, and how they are filtered. */

import type { Schemas } from "src/api/client";

export type FeatureTable = Schemas["FeatureTable"];
export type Distances = Schemas["Distances"];

/** Which features have a part of their own. */
export interface Roles {
  label: string | null;
  /** What the label asks for, in words. */
  labelWords: string;
  weight: string | null;
  time: string | null;
}

const LISTED_CLASSES = 20;

/** What a label asks for: `classes: 0 setosa, 1 virginica`, or its problem. */
export function labelInWords(problem: string | null, classes: readonly string[] | null): string {
  if (classes === null || classes.length === 0) {
    return problem === null ? "the label, which the model predicts" : `the label, which the model predicts: ${problem}`;
  }
  const named = classes.slice(0, LISTED_CLASSES).map((name, number) => `${number} ${name}`);
  const rest = classes.length - named.length;
  return `classes: ${named.join(", ")}${rest > 0 ? ` and ${rest} more` : ""}`;
}

/** Columns of a table that hold a number for each feature, or null. */
type NumberColumn = "count" | "missing" | "zeros" | "nan" | "infinite" | "mean" | "std" | "unique" | "average_length";

/** How far a feature of a data set is from that of the first. */
export interface Distance {
  measure: string | null;
  score: number | null;
  threshold: number | null;
  pValue: number | null;
  drifted: boolean;
}

/** A feature, and where it stands in each table. */
export interface FeatureRow {
  name: string;
  order: number;
  type: string;
  kind: FeatureTable["kinds"][number];
  /** Index into each data set's table; -1 where it has no such feature. */
  at: readonly number[];
  tables: readonly FeatureTable[];
  /** By data set, from the first to it; null of the first itself, and where none is known. */
  distances: readonly (Distance | null)[];
}

/** What a feature may be filtered by, beside name and type. */
export const TRAITS = {
  missing: "has missing values",
  zeros: "mostly zeros",
  constant: "has only one value",
  unique: "every value is different",
  lists: "has lists of values",
  differs: "differs from the first",
  absent: "not in every data set",
} as const;
export type Trait = keyof typeof TRAITS;

/** Kinds of features that are looked at together. */
export type Group = "all" | "numbers" | "words";

/**
 * Side by side, in the order of the first table; what only others have comes last.
 *
 * @param distances from the first to each of the others, in their order; undefined where they are not known yet
 */
export function mergeFeatures(
  tables: readonly FeatureTable[],
  distances: readonly (Distances | undefined)[],
): FeatureRow[] {
  const places = new Map<string, number[]>();
  tables.forEach((table, dataset) => {
    table.names.forEach((name, index) => {
      const at = places.get(name) ?? tables.map(() => -1);
      at[dataset] = index;
      places.set(name, at);
    });
  });
  const apart = distances.map(
    (each) => new Map(each?.names.map((name, index): [string, Distance] => [name, distanceAt(each, index)])),
  );
  return [...places].map(([name, at], order) => {
    const dataset = at.findIndex((index) => index >= 0);
    const [table, index] = [tables[dataset], at[dataset] ?? 0];
    return {
      name,
      order,
      type: table?.types[index] ?? "",
      kind: table?.kinds[index] ?? "none",
      at,
      tables,
      distances: [null, ...apart.map((of) => of.get(name) ?? null)],
    };
  });
}

function distanceAt(distances: Distances, index: number): Distance {
  return {
    measure: distances.measures[index] ?? null,
    score: distances.scores[index] ?? null,
    threshold: distances.thresholds[index] ?? null,
    pValue: distances.p_values[index] ?? null,
    drifted: distances.drifted[index] ?? false,
  };
}

/** What a data set says of a feature in a column; undefined where it does not have it. */
export function read<Name extends keyof FeatureTable>(
  row: FeatureRow,
  dataset: number,
  column: Name,
): (FeatureTable[Name] extends readonly (infer Value)[] ? Value : never) | undefined {
  const [table, index] = [row.tables[dataset], row.at[dataset] ?? -1];
  const values: unknown = table?.[column];
  return index >= 0 && Array.isArray(values) ? values[index] : undefined;
}

/** A number of the first data set that has it: what a column is sorted by. */
export function firstNumber(row: FeatureRow, column: NumberColumn): number | null {
  for (let dataset = 0; dataset < row.at.length; dataset++) {
    const value = read(row, dataset, column);
    if (value !== undefined && value !== null) {
      return value;
    }
  }
  return null;
}

/** The greatest over all data sets of a measure of each. */
export function greatest(
  row: FeatureRow,
  measure: (row: FeatureRow, dataset: number) => number | null | undefined,
): number | null {
  const values = row.at.map((_, dataset) => measure(row, dataset)).filter((value) => typeof value === "number");
  return values.length ? Math.max(...values) : null;
}

/** The share of the rows that lack a feature; NaN is no value either. */
export function missingShare(row: FeatureRow, dataset: number): number | null {
  const [count, missing] = [read(row, dataset, "count"), read(row, dataset, "missing")];
  if (typeof count !== "number" || typeof missing !== "number" || count + missing === 0) {
    return null;
  }
  return (missing + (read(row, dataset, "nan") ?? 0)) / (count + missing);
}

/** The share of a feature's values that are zero. */
export function zeroShare(row: FeatureRow, dataset: number): number | null {
  const [count, zeros] = [read(row, dataset, "count"), read(row, dataset, "zeros")];
  const values = (count ?? 0) * (read(row, dataset, "values_per_row") ?? 1);
  return typeof zeros === "number" && values > 0 ? Math.min(zeros / values, 1) : null;
}

/** Whether a feature has but one value, in every data set the same. */
export function isConstant(row: FeatureRow): boolean {
  const there = row.at.map((_, dataset) => dataset).filter((dataset) => row.at[dataset] !== -1);
  const values = there.map((dataset) => onlyValue(row, dataset));
  return values[0] !== null && values.every((value) => value === values[0]);
}

function onlyValue(row: FeatureRow, dataset: number): number | string | null {
  const quantiles = read(row, dataset, "quantiles");
  if (quantiles) {
    return quantiles[0] === quantiles.at(-1) ? (quantiles[0] ?? null) : null;
  }
  return read(row, dataset, "unique") === 1 ? (read(row, dataset, "top_values")?.[0]?.[0] ?? null) : null;
}

const CHECKS: Record<Trait, (row: FeatureRow) => boolean> = {
  missing: (row) => (greatest(row, missingShare) ?? 0) > 0,
  zeros: (row) => (greatest(row, zeroShare) ?? 0) >= 0.5,
  constant: isConstant,
  unique: (row) =>
    row.at.every((index, dataset) => {
      const [unique, count] = [read(row, dataset, "unique"), read(row, dataset, "count")];
      return index < 0 || (typeof unique === "number" && unique > 1 && unique === count);
    }),
  lists: (row) => row.at.some((_, dataset) => typeof read(row, dataset, "values_per_row") === "number"),
  differs: (row) => row.at.some((_, dataset) => row.distances[dataset]?.drifted === true || isOneSided(row, dataset)),
  absent: (row) => row.at.includes(-1),
};

/** Whether a data set has a feature that the first does not have, or the other way round. */
export const isOneSided = (row: FeatureRow, dataset: number): boolean =>
  (row.at[0] === -1) !== (row.at[dataset] === -1);

export const hasTrait = (row: FeatureRow, trait: Trait): boolean => CHECKS[trait](row);

export const isIn = (row: FeatureRow, group: Group): boolean =>
  group === "all" || (row.kind === "num") === (group === "numbers");

/** A test of names: a part of them, or between slashes a regular expression; a text says what is wrong with it. */
export function nameTest(search: string): ((name: string) => boolean) | string {
  const pattern = /^\/(.+?)\/?$/.exec(search)?.[1];
  if (pattern === undefined) {
    const part = search.toLowerCase();
    return (name) => name.toLowerCase().includes(part);
  }
  try {
    const expression = new RegExp(pattern, "i");
    return (name) => expression.test(name);
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}
