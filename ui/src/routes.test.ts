import {
  airflowTaskPath,
  artifactPath,
  dataPath,
  formatArtifact,
  modelsPath,
  parseArtifact,
  refOf,
  runsPath,
} from "src/routes";
import { expect, test } from "vitest";

const REF = {
  kind: "model",
  dag_id: "flights",
  task_id: "group.train",
  map_index: 3,
  run_id: "manual__2026/11 20+00:00",
};

test("an artifact in the address is read back, a run's id with a slash in it too", () => {
  expect(parseArtifact(formatArtifact(REF))).toEqual(REF);
  expect(refOf({ ...REF, ...{ state: "present" } })).toEqual(REF);
});

test.each([
  "",
  "model",
  "model/flights/train/-1",
  "model/flights/train/x/run",
  "model/flights/train/-2/run",
  "/f/t/1/r",
])("%o names no artifact", (text) => {
  expect(parseArtifact(text)).toBeNull();
});

test("addresses quote what they hold, and leave out what is not given", () => {
  expect(modelsPath("a&b", { model: "late/soon", version: 2 })).toBe(
    "/plugin/hops/models/late%2Fsoon?dag=a%26b&version=2",
  );
  expect(modelsPath("f", { model: undefined, version: undefined })).toBe("/plugin/hops/models?dag=f");
  expect(runsPath("f", { compare: ["1", "2"], filter: "" })).toBe("/plugin/hops/runs?dag=f&compare=1&compare=2");
  expect(airflowTaskPath(REF)).toBe("/dags/flights/runs/manual__2026%2F11%2020%2B00%3A00/tasks/group.train/mapped/3");
  expect(airflowTaskPath({ ...REF, map_index: -1 })).not.toContain("mapped");
});

test("an artifact is shown by the page that knows its kind, any other by its lineage", () => {
  const pageOf = (kind: string) =>
    artifactPath({ ...REF, kind })
      .split("?")[0]
      ?.split("/")
      .at(-1);
  const kinds = ["statistics", "examples", "predictions", "schema", "anomalies", "skew", "model", "new"];
  expect(kinds.map(pageOf)).toEqual(["data", "data", "data", "schema", "schema", "skew", "lineage", "lineage"]);
  expect(artifactPath({ ...REF, kind: "examples" })).toContain("tab=dive");
  expect(dataPath("f", { tab: "overview" })).toBe("/plugin/hops/data?dag=f");
});
