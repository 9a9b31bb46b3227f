import { dataRows, libraryRows, type Provenance, statisticsOf } from "src/pages/Runs/provenance";
import { expect, test } from "vitest";

const made = (run_id: string, kind: string) => ({
  dag_id: "d",
  run_id,
  task_id: "t",
  map_index: -1,
  iteration: -1,
  kind,
});
const first: Provenance = {
  python: "3.11.7",
  package: "0.1.0",
  packages: { numpy: "1.26.4", keras: "3.15.0" },
  data: [
    {
      role: "examples",
      uri: "e1",
      fingerprint: "abcdef0123456789",
      window: ["2013-01-01T00:00:00+00:00", null],
      rows: { train: 1200 },
      made_by: null,
    },
    { role: "statistics", uri: "s1", fingerprint: "1", window: null, rows: {}, made_by: made("r1", "statistics") },
  ],
};
const logged: Provenance = { ...first, python: null, package: null, packages: { numpy: "1.26.4" }, data: [] };

test("libraries have a row each, with nothing for a run that lacks one", () => {
  expect(libraryRows([first, logged, null])).toEqual([
    { name: "Python", values: ["3.11.7", null, null] },
    { name: "airflow-hops", values: ["0.1.0", null, null] },
    { name: "keras", values: ["3.15.0", null, null] },
    { name: "numpy", values: ["1.26.4", "1.26.4", null] },
  ]);
});

test("data has its fingerprint, window and rows, and several artifacts of a role stand together", () => {
  const twice = { ...first, data: first.data.slice(0, 1).flatMap((each) => [each, { ...each, fingerprint: "9" }]) };
  const rows = Object.fromEntries(dataRows([first, twice]).map(({ name, values }) => [name, values]));
  expect(rows["examples: fingerprint"]).toEqual(["abcdef012345…", "abcdef012345…, 9…"]);
  expect(rows["examples: window"]?.[0]).toBe("2013-01-01 to …");
  expect(rows["examples: rows of train"]?.[0]).toBe("1,200");
});

test("statistics that runs share are compared once", () => {
  const other = { ...first, data: first.data.map((each) => ({ ...each, uri: `${each.uri}x` })) };
  expect(statisticsOf([first, first, null])).toHaveLength(1);
  expect(statisticsOf([first, other])).toHaveLength(2);
});
