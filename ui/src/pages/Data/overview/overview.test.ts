import { countsOf } from "src/pages/Data/overview/Distribution";
import { chooseDatasets, formatDataset, type Listing, labelOf } from "src/pages/Data/overview/datasets";
import { edgesOf, type Side, sharesIn, valueAt, valuesOf } from "src/pages/Data/overview/details";
import {
  type FeatureTable,
  firstNumber,
  greatest,
  hasTrait,
  isIn,
  labelInWords,
  mergeFeatures,
  missingShare,
  nameTest,
  type Trait,
  zeroShare,
} from "src/pages/Data/overview/features";
import { describe, expect, test } from "vitest";

function tableOf(features: Record<string, Partial<Record<keyof FeatureTable, unknown>>>): FeatureTable {
  const rows = Object.values(features);
  const columns = ["types", "kinds", "count", "missing", "zeros", "nan", "unique", "quantiles", "top_values"] as const;
  const table = columns.map((column) => [column, rows.map((row) => row[column] ?? null)]);
  return { names: Object.keys(features), values_per_row: rows.map(() => null), ...Object.fromEntries(table) };
}

const TRAIN = tableOf({
  delay: { types: "FLOAT", kinds: "num", count: 90, missing: 5, nan: 5, zeros: 45, quantiles: [0, 5, 9] },
  year: { types: "INT", kinds: "num", count: 100, missing: 0, zeros: 0, quantiles: [2013, 2013] },
  key: { types: "STRING", kinds: "string", count: 100, missing: 0, unique: 100, top_values: [["a", 1]] },
});
const NEWEST = tableOf({
  year: { types: "INT", kinds: "num", count: 10, missing: 0, zeros: 0, quantiles: [2014, 2014] },
  extra: { types: "STRING", kinds: "string", count: 10, missing: 0, unique: 1, top_values: [["x", 10]] },
});

test("what a label asks for is said, its classes by number", () => {
  expect(labelInWords("multiclass", ["cat", "dog"])).toBe("classes: 0 cat, 1 dog");
  expect(
    labelInWords(
      null,
      Array.from({ length: 22 }, (_, number) => String(number)),
    ),
  ).toMatch(/^classes: 0 0, .* 19 19 and 2 more$/);
  expect([labelInWords("regression", null), labelInWords(null, null)]).toEqual([
    "the label, which the model predicts: regression",
    "the label, which the model predicts",
  ]);
});

describe("features of several data sets", () => {
  const distances = {
    names: ["year"], measures: ["jensen_shannon"], scores: [0.9], thresholds: [0.1], p_values: [0.001], drifted: [true],
  }; // biome-ignore format: as a row
  const rows = mergeFeatures([TRAIN, NEWEST], [distances as unknown as Parameters<typeof mergeFeatures>[1][number]]);
  const row = (name: string) => rows.find((each) => each.name === name) as (typeof rows)[number];

  test("stand side by side in the order of the first, what only others have last", () => {
    expect(rows.map(({ name, at }) => [name, at])).toEqual([
      ["delay", [0, -1]],
      ["year", [1, 0]],
      ["key", [2, -1]],
      ["extra", [-1, 1]],
    ]);
    expect(row("extra")).toMatchObject({ type: "STRING", kind: "string" });
    expect(row("year").distances[1]).toMatchObject({ score: 0.9, pValue: 0.001, drifted: true });
    expect(row("delay").distances).toEqual([null, null]);
  });

  test("shares count NaN as missing, and are none without rows", () => {
    expect(missingShare(row("delay"), 0)).toBeCloseTo(10 / 95, 12);
    expect(missingShare(row("delay"), 1)).toBeNull();
    expect(zeroShare(row("delay"), 0)).toBe(0.5);
    expect(greatest(row("year"), missingShare)).toBe(0);
    expect([firstNumber(row("extra"), "count"), firstNumber(row("extra"), "mean")]).toEqual([10, null]);
  });

  test("have traits", () => {
    const having = (trait: Trait) => rows.filter((each) => hasTrait(each, trait)).map(({ name }) => name);
    expect(having("missing")).toEqual(["delay"]);
    expect(having("zeros")).toEqual(["delay"]);
    expect(having("constant")).toEqual(["extra"]); // one year in each data set, but not the same
    expect(having("unique")).toEqual(["key"]);
    expect(having("differs")).toEqual(["delay", "year", "key", "extra"]);
    expect(having("absent")).toEqual(["delay", "key", "extra"]);
    expect(rows.filter((each) => isIn(each, "numbers")).map(({ name }) => name)).toEqual(["delay", "year"]);
  });

  test("are searched by a part of the name, or between slashes by an expression", () => {
    const found = (search: string) => {
      const matches = nameTest(search);
      return typeof matches === "string" ? matches : rows.map(({ name }) => name).filter(matches);
    };
    expect(found("E")).toEqual(["delay", "year", "key", "extra"]);
    expect(found("/^[dk]/")).toEqual(["delay", "key"]);
    expect(found("/ar$")).toEqual(["year"]);
    expect(found("/(/")).toContain("nvalid");
  });
});

describe("data sets of the address", () => {
  const listing = (...names: string[]) =>
    ({ datasets: names.map((name) => ({ name, slices: { "a:b": 1 } })) }) as unknown as Listing;
  const listings = [listing("train", "eval", "newest", "old"), undefined, listing("a b")];

  test("what it names, as far as it is there", () => {
    const named = ["0:eval", "0:train:a:b", "0:train:gone", "1:train", "2:a%20b", "x", "0:%"];
    expect(chooseDatasets(listings, named, "").map(formatDataset)).toEqual(["0:eval", "0:train:a:b", "2:a%20b"]);
  });

  test("else the split that is asked for, or the first three", () => {
    expect(chooseDatasets(listings, ["0:gone"], "eval").map(formatDataset)).toEqual(["0:eval", "2:a%20b"]);
    expect(chooseDatasets([listings[0]], [], "").map(({ name }) => name)).toEqual(["train", "eval", "newest"]);
  });

  test("names are short, and tell runs apart", () => {
    const ref = { run_id: "asset_triggered__2026-11-20T17:11:03+00:00_x" } as Parameters<typeof labelOf>[1];
    expect(labelOf({ artifact: 0, name: "eval", slice: "UA" }, ref, true)).toBe("eval · UA · asset 11-20 17:11");
  });
});

describe("distributions", () => {
  const curve = { values: [0, 10, 10, 20], shares: [0, 0.25, 0.75, 1] };

  test("shares of buckets add up, and a repeated value is in its own", () => {
    const shares = sharesIn(curve, edgesOf([curve], false, 4));
    expect(shares).toEqual([0.125, 0.625, 0.125, 0.125]);
    expect([0.125, 0.5, 1].map((share) => valueAt(curve, share))).toEqual([5, 10, 20]);
  });

  test("few integers have a bucket each, a single value its own", () => {
    expect(edgesOf([{ values: [1, 3], shares: [0, 1] }], true, 10)).toEqual([0.5, 1.5, 2.5, 3.5]);
    expect(edgesOf([{ values: [7, 7], shares: [0, 1] }], false, 10)).toEqual([6.5, 7.5]);
  });

  test("values of the first data set come first, the most frequent before others", () => {
    const side = (values: [string, number][]) => ({ detail: { values } }) as unknown as Side;
    const found = valuesOf([side([["a", 1], ["b", 5]]), side([["c", 9], ["a", 2]])]); // biome-ignore format: pairs
    expect(found).toEqual([
      { value: "b", counts: [5, null] },
      { value: "a", counts: [1, 2] },
      { value: "c", counts: [null, 9] },
    ]);
  });
});

test("a value that is not among the most frequent ones of a data set has at most as many rows as the least of these", () => {
  const columns = { types: "STRING", kinds: "string", missing: 0 };
  const first = tableOf({ city: { ...columns, count: 100, unique: 9, top_values: [["Bergen", 40], ["Oslo", 30]] } }); // biome-ignore format: as a row
  const others = [["Oslo", 60], ["Rome", 40]]; // biome-ignore format: as a row
  const second = tableOf({ city: { ...columns, count: 100, unique: 2, top_values: others } });
  const [row] = mergeFeatures([first, second], [undefined]);
  expect(row && [0, 1].map((dataset) => countsOf(row, dataset).most)).toEqual([30, 0]);
});
