import { type Column, chooseColumn, shownOf, sortRows, widthsOf } from "src/components/table";
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

test("columns that may shrink share what the page lacks, and no more", () => {
  const columns = [
    { ...COLUMNS[0], width: 300, minWidth: 100 },
    COLUMNS[1],
    { ...COLUMNS[2], width: 180, minWidth: 80 },
  ];
  const widths = (room: number) => widthsOf(columns as Column<Row>[], room);
  expect(widths(1000)).toEqual([300, 120, 180]);
  expect(widths(450)).toEqual([200, 120, 130]);
  expect(widths(200)).toEqual([100, 120, 80]);
  expect(widths(0)).toEqual([300, 120, 180]); // not measured yet
});

test("columns are chosen one after the other, and no choice stands for those that are shown by themselves", () => {
  const columns: Column<Row>[] = [{ ...(COLUMNS[0] as Column<Row>), fixed: true }, ...COLUMNS.slice(1)];
  columns.push({ key: "more", label: "More", render: () => null, optional: true });
  const without = chooseColumn(columns, [], "plain", false);
  expect(without).toEqual(["name", "score"]);
  const both = chooseColumn(columns, without, "more", true);
  expect(shownOf(columns, both).map(({ key }) => key)).toEqual(["name", "score", "more"]);
  expect(chooseColumn(columns, chooseColumn(columns, both, "plain", true), "more", false)).toEqual([]);
});
