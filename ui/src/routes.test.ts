import { iterationIn } from "src/host";
import {
  airflowTaskPath,
  artifactPath,
  dataPath,
  formatArtifact,
  instanceLabel,
  instanceOf,
  modelsPath,
  parseArtifact,
  parseInstance,
  refOf,
  resultPath,
  runsPath,
} from "src/routes";
import { expect, test } from "vitest";

const REF = {
  kind: "model",
  dag_id: "flights",
  task_id: "group.train",
  map_index: 3,
  iteration: -1,
  run_id: "manual__2026/11 20+00:00",
};

test("an artifact in the address is read back, a run's id with a slash in it too", () => {
  expect(parseArtifact(formatArtifact(REF))).toEqual(REF);
  expect(refOf({ ...REF, ...{ state: "present" } })).toEqual(REF);
});

test.each([
  [-1, -1, "-1", ""],
  [3, -1, "3", " [3]"],
  [-1, 0, "i0", " (iteration 0)"],
  [3, 2, "i2@3", " (iteration 2) [3]"],
])("map index %i of iteration %i is addressed as %s", (map_index, iteration, instance, label) => {
  const position = { map_index, iteration };
  expect(instanceOf(position)).toBe(instance);
  expect(parseInstance(instance)).toEqual(position);
  expect(instanceLabel(position)).toBe(label);
  expect(parseArtifact(formatArtifact({ ...REF, ...position }))).toEqual({ ...REF, ...position });
});

test.each([
  ["", false, -1],
  ["?iteration=2", false, 2],
  ["?loop_id=rounds&iteration=2", true, 2],
  ["?region_id=01a2&region_index=1", false, 1],
  ["?region_id=01a2&region_index=1", true, -1],
])("the host's %s (mapped: %s) names iteration %i", (search, isMapped, iteration) => {
  expect(iterationIn(search, isMapped)).toBe(iteration);
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
  expect(airflowTaskPath({ ...REF, map_index: -1, iteration: -1 })).not.toContain("mapped");
  expect(airflowTaskPath({ ...REF, iteration: 2 })).toMatch(/\/mapped\/3\?iteration=2$/);
  expect(resultPath({ ...REF, map_index: -1, iteration: 2 })).toMatch(/train\/plugin\/hops-task\?iteration=2$/);
});

test("an artifact is shown by the page that knows its kind, any other by its lineage", () => {
  const pageOf = (kind: string) =>
    artifactPath({ ...REF, kind })
      .split("?")[0]
      ?.split("/")
      .at(-1);
  const kinds = ["statistics", "examples", "predictions", "schema", "anomalies", "skew", "model", "new"];
  expect(kinds.map(pageOf)).toEqual(["data", "lineage", "lineage", "schema", "schema", "skew", "lineage", "lineage"]);
  expect(dataPath("f", { tab: "overview" })).toBe("/plugin/hops/data?dag=f");
});
