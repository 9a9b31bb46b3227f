/** Which rows are shown: those within ranges, or with values, of features. */

import { ticked } from "src/hooks/useQueryState";
import { type Column, factsOf, isDiscrete, isMissing } from "src/pages/Data/dive/columns";

/** A range of numbers (times in milliseconds), or some values; null among these is a missing one. */
export type Filter =
  | { name: string; from: number; to: number; values: null }
  | { name: string; values: readonly (string | null)[] };

const MISSING = "@missing";

/** As a text of the address: `temp:20..50`, `carrier:UA|B6`. */
export function formatFilter(filter: Filter): string {
  const name = encodeURIComponent(filter.name);
  return filter.values === null
    ? `${name}:${filter.from}..${filter.to}`
    : `${name}=${filter.values.map((value) => (value === null ? MISSING : encodeURIComponent(value))).join("|")}`;
}

/** Reads such a text; null where it is none. */
export function parseFilter(text: string): Filter | null {
  const [, encoded = "", mark, rest = ""] = /^([^:=]+)([:=])(.*)$/s.exec(text) ?? [];
  try {
    const name = decodeURIComponent(encoded);
    if (mark === "=") {
      return { name, values: rest.split("|").map((value) => (value === MISSING ? null : decodeURIComponent(value))) };
    }
    const [from = Number.NaN, to = Number.NaN] = rest.split("..").map(Number);
    return mark === ":" && from <= to ? { name, from, to, values: null } : null;
  } catch {
    return null;
  }
}

/** The filters of an address. */
export const filtersIn = (query: URLSearchParams): Filter[] =>
  query.getAll("filter").flatMap((text) => parseFilter(text) ?? []);

/** The features of an address that are opened to be filtered, and have no filter yet. */
export function openedIn(query: URLSearchParams): string[] {
  const filtered = new Set(filtersIn(query).map(({ name }) => name));
  return query.getAll("open").filter((name) => !filtered.has(name));
}

/** An address with another filter of a feature, which keeps its place; without one, the feature stays open. */
export function withFilter(
  query: URLSearchParams,
  name: string,
  change: (filter: Filter | null) => Filter | null,
): { filter: string[]; open: string[] } {
  const filters = filtersIn(query);
  const present = filters.find((each) => each.name === name) ?? null;
  const filter = change(present);
  const next = present === null ? [...filters, filter] : filters.map((each) => (each === present ? filter : each));
  return {
    filter: next.filter((each) => each !== null).map(formatFilter),
    open: ticked(openedIn(query), name, filter === null),
  };
}

/** A value as a filter names it. */
export function filterValue(column: Column, value: number): string | null {
  return isMissing(column, value) ? null : column.role === "category" ? (column.words[value] ?? "") : String(value);
}

/** 1 for each row that passes all filters whose columns are there. */
export function passing(
  rows: number,
  columns: ReadonlyMap<string, Column>,
  filters: readonly Filter[],
  except?: string,
): Uint8Array {
  const shown = new Uint8Array(rows).fill(1);
  for (const filter of filters) {
    const column = columns.get(filter.name);
    if (column && filter.name !== except) {
      apply(shown, column, filter);
    }
  }
  return shown;
}

function apply(shown: Uint8Array, column: Column, filter: Filter): void {
  const { values } = column;
  if (filter.values === null) {
    // Ends of the range are rounded as the values are.
    const round = values instanceof Float32Array ? Math.fround : Number;
    const [from, to] = [round(filter.from), round(filter.to)];
    for (let row = 0; row < shown.length; row++) {
      const value = values[row] as number;
      if (!(value >= from && value <= to)) {
        shown[row] = 0;
      }
    }
    return;
  }
  const wanted = new Set(filter.values);
  const taken = new Map<number, boolean>();
  for (let row = 0; row < shown.length; row++) {
    const value = values[row] as number;
    let passes = taken.get(value);
    if (passes === undefined) {
      passes = wanted.has(filterValue(column, value));
      taken.set(value, passes);
    }
    if (!passes) {
      shown[row] = 0;
    }
  }
}

/** How the rows are spread over a feature's range: all of them, and those that are shown. */
interface Spread {
  min: number;
  max: number;
  all: number[];
  shown: number[];
}

export function spreadOf(column: Column, shown: Uint8Array, bins: number): Spread {
  const { min, max } = factsOf(column);
  const spread: Spread = { min, max, all: new Array(bins).fill(0), shown: new Array(bins).fill(0) };
  const width = (max - min) / bins || 1;
  for (let row = 0; row < shown.length; row++) {
    const value = column.values[row] as number;
    if (!isMissing(column, value)) {
      const bin = Math.min(Math.max(Math.floor((value - min) / width), 0), bins - 1);
      spread.all[bin] = (spread.all[bin] ?? 0) + 1;
      spread.shown[bin] = (spread.shown[bin] ?? 0) + (shown[row] as number);
    }
  }
  return spread;
}

/** How often each value occurs, the most frequent first. */
export function countValues(column: Column, shown: Uint8Array): { value: number; all: number; shown: number }[] {
  const counts = new Map<number, { value: number; all: number; shown: number }>();
  for (let row = 0; row < shown.length; row++) {
    const value = column.values[row] as number;
    const count = counts.get(value) ?? { value, all: 0, shown: 0 };
    counts.set(value, count);
    count.all += 1;
    count.shown += shown[row] as number;
  }
  const found = [...counts.values()];
  return column.role === "number" ? found.sort((a, b) => a.value - b.value) : found.sort((a, b) => b.all - a.all);
}

/** Whether a feature is filtered by its values rather than by a range. */
export const byValues = (column: Column): boolean => isDiscrete(column);
