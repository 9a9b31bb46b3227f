/** Rows in groups by a feature: its values, or bins of its range. For facets, colours and bands of an axis. */

import { type Column, factsOf, isDiscrete, isMissing } from "src/pages/Data/dive/columns";
import { filterValue } from "src/pages/Data/dive/filters";
import { textOf } from "src/pages/Data/dive/text";

/** A partition of the rows. */
export interface Groups {
  column: Column;
  labels: string[];
  /** What a filter calls the single value of each group; empty of bins. */
  keys: (string | null)[];
  /** The group of each row. */
  of: Uint16Array;
  /** Index of the group of all other values, or -1. */
  other: number;
  /** Index of the group of rows without a value, or -1. */
  missing: number;
}

/**
 * Groups rows by a feature.
 *
 * @param most how many groups there may be, besides those of other and of missing values; a range has so many bins
 */
export function groupBy(column: Column, most: number, zone: string): Groups {
  return isDiscrete(column, most) || column.role === "category"
    ? byValue(column, most, zone)
    : byBin(column, most, zone);
}

function byValue(column: Column, most: number, zone: string): Groups {
  const values = column.role === "category" ? column.words.map((_, index) => index) : (factsOf(column).distinct ?? []);
  const shown = values.slice(0, most);
  const index = new Map(shown.map((value, at) => [value, at]));
  const labels = shown.map((value) => textOf(column, value, zone));
  const other = values.length > shown.length ? labels.push(`${values.length - shown.length} others`) - 1 : -1;
  const missing = column.nulls > 0 ? labels.push("missing") - 1 : -1;
  const of = new Uint16Array(column.values.length);
  for (let row = 0; row < of.length; row++) {
    const value = column.values[row] as number;
    of[row] = isMissing(column, value) ? missing : (index.get(value) ?? other);
  }
  return { column, labels, keys: shown.map((value) => filterValue(column, value)), of, other, missing };
}

function byBin(column: Column, bins: number, zone: string): Groups {
  const { min, max } = factsOf(column);
  const width = (max - min) / bins || 1;
  const labels = Array.from({ length: bins }, (_, bin) => {
    const from = textOf(column, min + bin * width, zone, width);
    return `${from} – ${textOf(column, bin === bins - 1 ? max : min + (bin + 1) * width, zone, width)}`;
  });
  const missing = column.nulls > 0 ? labels.push("missing") - 1 : -1;
  const of = new Uint16Array(column.values.length);
  for (let row = 0; row < of.length; row++) {
    const value = column.values[row] as number;
    of[row] = Number.isNaN(value) ? missing : Math.min(Math.max(Math.floor((value - min) / width), 0), bins - 1);
  }
  return { column, labels, keys: [], of, other: -1, missing };
}

/** How many of the rows that are shown each group has. */
export function countGroups(groups: Groups, shown: Uint8Array): number[] {
  const counts = groups.labels.map(() => 0);
  for (let row = 0; row < shown.length; row++) {
    if (shown[row]) {
      counts[groups.of[row] as number] = (counts[groups.of[row] as number] ?? 0) + 1;
    }
  }
  return counts;
}
