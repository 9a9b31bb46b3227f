import { columnOf } from "src/pages/Data/dive/columnOf";
import { asClasses, asTime, decode, factsOf, isDiscrete, valueAt } from "src/pages/Data/dive/columns";
import {
  countValues,
  type Filter,
  formatFilter,
  openedIn,
  parseFilter,
  passing,
  spreadOf,
  withFilter,
} from "src/pages/Data/dive/filters";
import { countGroups, groupBy } from "src/pages/Data/dive/groups";
import { formatSelection, parseSelection, readPlacement } from "src/pages/Data/dive/settings";
import { differences } from "src/pages/Data/dive/summary";
import { textOf } from "src/pages/Data/dive/text";
import { describe, expect, test } from "vitest";

const CARRIER = columnOf(["UA", "B6", null, "UA", ""], "category");
const DELAY = columnOf([5, -3, Number.NaN, 5, 40]);

/** Bytes as the API sends them: the header's length, the header, then the columns. */
function encode(header: object, values: Float32Array): ArrayBuffer {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padded = Math.ceil((4 + text.length) / 4) * 4;
  const bytes = new Uint8Array(padded + values.byteLength);
  new DataView(bytes.buffer).setUint32(0, padded - 4, true);
  bytes.fill(32, 4, padded);
  bytes.set(text, 4);
  bytes.set(new Uint8Array(values.buffer), padded);
  return bytes.buffer;
}

describe("columns", () => {
  test("are read from bytes; a NaN that was written is missing", () => {
    const header = {
      rows: 3,
      total_rows: 90,
      columns: [
        { name: "delay", kind: "float", type: "float32", offset: 0, role: "number", nulls: 0 },
        { name: "list", kind: "list<string>", offset: 12, role: null, nulls: 0 },
      ],
    };
    const sample = decode(encode(header, Float32Array.of(1.5, Number.NaN, 2)));
    expect([sample.rows, sample.totalRows, sample.columns.length]).toEqual([3, 90, 1]);
    const [column] = sample.columns;
    expect(column && [...column.values]).toEqual([1.5, Number.NaN, 2]);
    expect(column?.nulls).toBe(1);
  });

  test("range and moments are those of the finite values", () => {
    const facts = factsOf(columnOf([1, 2, Number.NaN, 3, Number.POSITIVE_INFINITY]));
    expect([facts.min, facts.max, facts.mean]).toEqual([1, 3, 2]);
    expect(facts.deviation).toBeCloseTo(Math.sqrt(2 / 3), 12);
    expect(facts.distinct).toEqual([1, 2, 3, Number.POSITIVE_INFINITY]);
    expect(factsOf(columnOf(Array.from({ length: 65 }, (_, index) => index))).distinct).toBeNull();
    expect(factsOf(columnOf([Number.NaN]))).toMatchObject({ min: 0, max: 0, mean: Number.NaN });
  });

  test("a handful of whole numbers stands for itself, as words do", () => {
    expect(isDiscrete(CARRIER)).toBe(true);
    expect(isDiscrete(columnOf([1, 2, 3]))).toBe(true);
    expect(isDiscrete(columnOf([1, 2.5]))).toBe(false);
    expect(isDiscrete(columnOf([1, 2, 3]), 2)).toBe(false);
  });

  test("values in words", () => {
    expect([0, 2, 4].map((row) => valueAt(CARRIER, row))).toEqual(["UA", null, ""]);
    const kinds = asClasses(columnOf([1, 0, Number.NaN, 7]), ["cat", "dog"]);
    expect([0, 1, 2, 3].map((row) => textOf(kinds, kinds.values[row] as number, "UTC"))).toEqual([
      "dog",
      "cat",
      "missing",
      "missing",
    ]);
    expect(valueAt(asTime(columnOf([86_400])), 0)).toBe("1970-01-02T00:00:00.000Z");
    expect([-1, 0, 2].map((value) => textOf(CARRIER, value, "UTC"))).toEqual(["missing", "UA", "(empty)"]);
    expect(textOf(DELAY, Number.NEGATIVE_INFINITY, "UTC")).toBe("−∞");
    expect([0.25, 0.1].map((step) => textOf(DELAY, 1.25, "UTC", step))).toEqual(["1.3", "1.3"]);
    expect(textOf(DELAY, -0.001, "UTC", 1)).toBe("0");
    const time = columnOf([0], "time");
    expect(textOf(time, 3_600_000, "UTC", 3_600_000)).toBe("1970-01-01 01:00");
    expect(textOf(time, 3_600_000, "America/New_York", 86_400_000)).toBe("1969-12-31");
  });
});

describe("filters", () => {
  const filters: Filter[] = [
    { name: "a:b=c", from: -1.5, to: 2e9, values: null },
    { name: "carrier", values: ["UA|B6", null, "@", "", "50%"] },
  ];

  test("are read back from the address, whatever names and values hold", () => {
    expect(filters.map((filter) => parseFilter(formatFilter(filter)))).toEqual(filters);
  });

  test.each(["", "a", "a:1", "a:2..1", "a:x..y", "%:1..2"])("%o is none", (text) => {
    expect(parseFilter(text)).toBeNull();
  });

  test("change one after the other, whatever is shown meanwhile, and keep their places", () => {
    let query = new URLSearchParams(filters.map((filter) => ["filter", formatFilter(filter)]));
    const change = (name: string, to: (filter: Filter | null) => Filter | null) => {
      const { filter, open } = withFilter(query, name, to);
      query = new URLSearchParams([...filter.map((text) => ["filter", text]), ...open.map((text) => ["open", text])]);
    };
    const add = (value: string) =>
      change("dest", (filter) => ({ name: "dest", values: [...(filter?.values ?? []), value] }));
    add("ATL");
    change("a:b=c", () => null);
    add("BOS");
    expect(query.getAll("filter").map(parseFilter)).toEqual([filters[1], { name: "dest", values: ["ATL", "BOS"] }]);
    expect(openedIn(query)).toEqual(["a:b=c"]);
    change("a:b=c", () => filters[0] as Filter);
    expect(openedIn(query)).toEqual([]);
  });

  test("leave the rows that pass all of them; one can be left out, and one of a column that is not there has no say", () => {
    const columns = new Map([
      ["carrier", CARRIER],
      ["delay", DELAY],
    ]);
    const late: Filter = { name: "delay", from: 0, to: 5, values: null };
    const some: Filter = { name: "carrier", values: ["UA", null] };
    const rows = (...chosen: Filter[]) => [...passing(5, columns, chosen)];
    expect(rows(late)).toEqual([1, 0, 0, 1, 0]);
    expect(rows(some)).toEqual([1, 0, 1, 1, 0]);
    expect(rows(late, some)).toEqual([1, 0, 0, 1, 0]);
    expect(rows({ ...late, name: "gone" })).toEqual([1, 1, 1, 1, 1]);
    expect([...passing(5, columns, [late, some], "delay")]).toEqual([1, 0, 1, 1, 0]);
  });

  test("the ends of a range are rounded as the values are", () => {
    const column = { ...DELAY, values: Float32Array.of(0.1) };
    const columns = new Map([["delay", column]]);
    expect([...passing(1, columns, [{ name: "delay", from: 0.1, to: 0.1, values: null }])]).toEqual([1]);
  });

  test("spread and counts are of all rows, and of those that are shown", () => {
    const shown = Uint8Array.of(1, 0, 1, 0, 1);
    expect(spreadOf(DELAY, shown, 2)).toEqual({ min: -3, max: 40, all: [3, 1], shown: [1, 1] });
    expect(countValues(CARRIER, shown)[0]).toEqual({ value: 0, all: 2, shown: 1 });
    expect(countValues(columnOf([2, 1, 2]), Uint8Array.of(1, 1, 1)).map(({ value }) => value)).toEqual([1, 2]);
  });
});

describe("groups", () => {
  test("of words: the most frequent, all others, and the missing", () => {
    const groups = groupBy(CARRIER, 1, "UTC");
    expect(groups.labels).toEqual(["UA", "2 others", "missing"]);
    expect([...groups.of]).toEqual([0, 1, 2, 0, 1]);
    expect(groups.keys).toEqual(["UA"]);
    expect(countGroups(groups, Uint8Array.of(1, 1, 0, 0, 1))).toEqual([1, 2, 0]);
  });

  test("of a range: bins that hold both of its ends", () => {
    const groups = groupBy(columnOf([0, 4.9, 5, 10, Number.NaN, Number.NEGATIVE_INFINITY]), 2, "UTC");
    expect(groups.labels).toEqual(["0 – 5", "5 – 10", "missing"]);
    expect([...groups.of]).toEqual([0, 0, 1, 1, 2, 0]);
  });
});

test("a placement and a selection survive the address; what makes no sense is the default", () => {
  const defaults = { x: "a", y: "b", color: "c" };
  const query = new URLSearchParams("x=delay&xscale=log&yscale=nonsense&binsx=99&jitter=x&filter=a:1..2&filter=bad");
  const placement = readPlacement(query, defaults);
  expect(placement).toMatchObject({ x: "delay", y: "b", xScale: "log", yScale: "linear", columnBins: 20, jitter: 0.8 });
  expect(placement.filters).toEqual([{ name: "a", from: 1, to: 2, values: null }]);
  const selection = { placement, aspect: 1.5, outline: [[0.1, 0.2] as const, [0.3, 0.4] as const] };
  expect(parseSelection(formatSelection(selection))).toEqual(selection);
  expect(["", "in=1,2", "in=1,2 3", "in=0,0 1,0 1,1"].map(parseSelection)).toEqual([null, null, null, null]);
});

test("a selection differs most in the feature by which it was chosen", () => {
  const hour = columnOf(Array.from({ length: 100 }, (_, row) => row % 24));
  const late = columnOf(
    Array.from({ length: 100 }, (_, row) => (row % 24 > 18 ? "late" : "early")),
    "category",
  );
  const noise = columnOf(Array.from({ length: 100 }, (_, row) => (row * 37) % 11));
  const selected = Uint8Array.from(late.values, (value) => Number(late.words[value] === "late"));
  const [first, ...rest] = differences([noise, hour, late], selected, new Uint8Array(100).fill(1));
  expect([first?.column, first?.selected]).toEqual([late, 1 - Number(first?.value === 0)]);
  expect(rest.map(({ column }) => column)).toEqual([hour, noise]);
  expect(differences([hour], new Uint8Array(100), new Uint8Array(100).fill(1))).toEqual([]);
});
