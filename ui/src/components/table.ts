/** What a table's columns are, and how its rows are put in order. */

import type { ReactNode } from "react";
import { formatNumber } from "src/format";
import type { Sort } from "src/hooks/useQueryState";

/** One column of a table of `Row`s. */
export interface Column<Row> {
  /** Its name in the address. */
  key: string;
  label: string;
  /** What is shown; without it, that which is sorted by. */
  render?: (row: Row) => ReactNode;
  /** What to sort by; without it the column cannot be sorted by. Absent values (null) come last either way. */
  value?: (row: Row) => string | number | null | undefined;
  align?: "start" | "end";
  /** Pixels that it has at least; what is left over is shared out. What does not fit is cut off. */
  width?: number;
  /** Pixels down to which it shrinks where the page is too narrow for all columns; without it, it does not. */
  minWidth?: number;
  /** Whether the heading is only for those who hear the page: of a mark. */
  quiet?: boolean;
  /** Said on hover of the heading. */
  help?: string;
  /** Whether it is shown only when the user asks for it. */
  optional?: boolean;
  /** Whether it can never be hidden: the row's name. */
  fixed?: boolean;
  /** Whether the first click sorts descending: scores, counts, times. */
  descendingFirst?: boolean;
}

/** A column by its name in the address and its heading. */
export const column = <Row>(
  key: string,
  label: string,
  more: Omit<Column<Row>, "key" | "label"> = {},
): Column<Row> => ({
  key,
  label,
  ...more,
});

type Maybe = number | null | undefined;

/** A column of numbers: below one another at the end, the greatest first, shown by `format` as they are sorted by. */
export function numberColumn<Row>(
  key: string,
  label: string,
  value: (row: Row) => Maybe,
  { format = formatNumber, ...more }: Partial<Column<Row>> & { format?: (value: Maybe) => string } = {},
): Column<Row> {
  return { key, label, align: "end", descendingFirst: true, value, render: (row) => format(value(row)), ...more };
}

/** The columns that are shown: those that were chosen, or else those that the table shows by itself. */
export const shownOf = <Row>(columns: readonly Column<Row>[], chosen: readonly string[]): Column<Row>[] =>
  columns.filter(({ key, fixed, optional }) => fixed || (chosen.length ? chosen.includes(key) : !optional));

/** The choice with a column more or less; none where it is what the table shows by itself. */
export function chooseColumn<Row>(
  columns: readonly Column<Row>[],
  chosen: readonly string[],
  key: string,
  checked: boolean,
): string[] {
  const shown = shownOf(columns, chosen);
  const next = columns.filter((each) => (each.key === key ? checked : shown.includes(each)));
  const usual = shownOf(columns, []);
  return next.length === usual.length && usual.every((each) => next.includes(each)) ? [] : next.map((each) => each.key);
}

const WIDTH = 120;
const FIXED_WIDTH = 220;

/** The least widths of columns in so many pixels: columns that may shrink do so alike, as far as it takes. */
export function widthsOf<Row>(columns: readonly Column<Row>[], room: number): number[] {
  const wide = columns.map(({ width, fixed }) => width ?? (fixed ? FIXED_WIDTH : WIDTH));
  const narrow = columns.map(({ minWidth }, place) => minWidth ?? (wide[place] as number));
  const sum = (widths: readonly number[]) => widths.reduce((total, width) => total + width, 0);
  const spare = sum(wide) - sum(narrow);
  const share = spare > 0 && room > 0 ? Math.min(Math.max((room - sum(narrow)) / spare, 0), 1) : 1;
  return wide.map((width, place) => Math.floor((narrow[place] as number) * (1 - share) + width * share));
}

const natural = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/** The rows in order; the same array where there is no order. */
export function sortRows<Row>(
  rows: readonly Row[],
  columns: readonly Column<Row>[],
  sort: Sort | null,
): readonly Row[] {
  const value = columns.find(({ key }) => key === sort?.column)?.value;
  if (!sort || !value) {
    return rows;
  }
  const sign = sort.descending ? -1 : 1;
  const keyed = rows.map((row, index) => ({ row, index, key: value(row) }));
  keyed.sort((left, right) => {
    const a = left.key;
    const b = right.key;
    const aAbsent = a === null || a === undefined || Number.isNaN(a);
    const bAbsent = b === null || b === undefined || Number.isNaN(b);
    if (aAbsent || bAbsent) {
      return aAbsent && bAbsent ? left.index - right.index : aAbsent ? 1 : -1;
    }
    const order = typeof a === "number" && typeof b === "number" ? a - b : natural.compare(String(a), String(b));
    return order ? sign * order : left.index - right.index;
  });
  return keyed.map(({ row }) => row);
}
