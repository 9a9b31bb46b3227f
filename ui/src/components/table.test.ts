import { type Column, sortRows } from "src/components/table";
import { expect, test } from "vitest";

type Row = { name: string; score: number | null };
const COLUMNS: Column<Row>[] = [
  { key: "name", label: "Name", render: ({ name }) => name, value: ({ name }) => name },
  { key: "score", label: "Score", render: ({ score }) => score, value: ({ score }) => score },
  { key: "plain", label: "Plain", render: () => null },
];
const ROWS: Row[] = [
  { name: "run10", score: 1 },
  { name: "run9", score: null },
  { name: "Run2", score: Number.NaN },
  { name: "run1", score: -3 },
  { name: "run3", score: 1 },
];
const sorted = (column: string, descending: boolean) =>
  sortRows(ROWS, COLUMNS, { column, descending }).map(({ name }) => name);

test("words sort as people count, whatever their case", () => {
  expect(sorted("name", false)).toEqual(["run1", "Run2", "run3", "run9", "run10"]);
  expect(sorted("name", true)).toEqual(["run10", "run9", "run3", "Run2", "run1"]);
});

test("absent values come last either way, and equals keep their order", () => {
  expect(sorted("score", false)).toEqual(["run1", "run10", "run3", "run9", "Run2"]);
  expect(sorted("score", true)).toEqual(["run10", "run3", "run1", "run9", "Run2"]);
});

test("without an order, or by a column that has none, the rows are as they were", () => {
  expect(sortRows(ROWS, COLUMNS, null)).toBe(ROWS);
  expect(sortRows(ROWS, COLUMNS, { column: "plain", descending: true })).toBe(ROWS);
  expect(sortRows(ROWS, COLUMNS, { column: "gone", descending: false })).toBe(ROWS);
});
