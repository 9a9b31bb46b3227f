import { type ArtifactEntry, headlineOf, isConserved, pageOf, rowsOf } from "src/tabs/run/stages";
import { curvesOf, secondsLeft } from "src/tabs/task/progress";
import { describe, expect, test } from "vitest";

type Reports = Parameters<typeof secondsLeft>[0];
const report = (at: number, progress: number | null, text = "", metrics: Record<string, number> = {}) =>
  ({ at, progress, text, metrics }) as Reports[number];

describe("progress", () => {
  test("goes on as it did, since the last report too", () => {
    const reports = [report(0, null), report(100, 0.1), report(200, 0.3), report(250, null)];
    expect(secondsLeft(reports, 200_000)).toBeCloseTo(350, 9);
    expect(secondsLeft(reports, 300_000)).toBeCloseTo(250, 9);
    expect(secondsLeft(reports, 9_000_000)).toBe(0);
    expect(secondsLeft([report(0, 0.5)], 0)).toBeNull();
    expect(secondsLeft([report(0, 0.5), report(9, 0.5)], 0)).toBeNull();
  });

  test("figures become curves over epochs, else over reports", () => {
    const found = curvesOf([
      report(1, 0, "epoch 3", { loss: 5 }),
      report(2, 0, "saved"),
      report(3, 0, "half way", { loss: 4, auc: 0.6 }),
    ]);
    expect(found.map(({ metric, steps, values, times }) => [metric, steps, values, times])).toEqual([
      ["loss", [3, 4], [5, 4], [1000, 3000]],
      ["auc", [4], [0.6], [3000]],
    ]);
  });
});

const artifact = (kind: string, more: object) =>
  ({ kind, dag_id: "f", run_id: "r", task_id: "t", map_index: -1, iteration: -1, metrics: {}, properties: {}, rows: {}, ...more }) as
    unknown as ArtifactEntry; // biome-ignore format: one line

describe("stages of a run", () => {
  test("each artifact is a row, and so is a stage without", () => {
    const stage = (task_id: string, ...artifacts: ArtifactEntry[]) => ({
      task_id,
      map_index: -1,
      iteration: -1,
      artifacts,
    });
    const stages = [stage("validate", artifact("anomalies", {}), artifact("examples", {})), stage("train")];
    const rows = rowsOf("f", { run_id: "r", stages } as unknown as Parameters<typeof rowsOf>[1]);
    expect(rows.map(({ key, position }) => [key, position])).toEqual([
      ["validate/-1/anomalies", 0],
      ["validate/-1/examples", 1],
      ["train/-1/", 2],
    ]);
  });

  test("rows are conserved where each that was read is written or rejected", () => {
    const rows = { train: { rows_in: 10, rows_out: 7, rejected: { late: 2, early: 1 } } };
    expect(isConserved(artifact("examples", { rows }))).toBe(true);
    expect(isConserved(artifact("examples", { rows: { train: { ...rows.train, rows_out: 6 } } }))).toBe(false);
  });

  test.each([
    [
      "snapshot",
      { properties: { window: ["2013-01-01T00:00", "2013-02-01"], tables: ["a", "b"] } },
      "2013-01-01 to 2013-02-01 · 2 tables",
    ],
    ["examples", { properties: { splits: ["train"] }, rows: { train: { rows_out: 85_400 } } }, "train 85.4k"],
    [
      "evaluation",
      { properties: { blessed: true }, metrics: { eval_auc: 0.71, eval_gain: 0.012 } },
      "blessed · eval AUC 0.71 · +0.012 to the champion",
    ],
    [
      "evaluation",
      {
        properties: { blessed: true },
        metrics: {
          eval_auc: 0.71,
          eval_brier: 0.2,
          champion_eval_auc: 0.7,
          champion_eval_brier: 0.25,
          eval_gain: 0.05,
        },
      },
      "blessed · eval Brier score 0.2 · +0.05 to the champion",
    ],
    ["deployment", { properties: { model_name: "m", version: 3, mode: "canary" } }, "m v3 as canary"],
    [
      "skew",
      { properties: { verdict: "pipeline_fault", drifted: ["a", "b", "c", "d"] } },
      "pipeline fault: a, b, c and 1 more",
    ],
    ["something_new", { metrics: { some_figure: 2 } }, "some figure 2"],
  ])("an artifact of kind %s in a few words", (kind, more, words) => {
    expect(headlineOf(artifact(kind, more))).toBe(words);
  });

  test("what a stage made is opened on the page that fits", () => {
    const pageFor = (made: ArtifactEntry, model_name: string | null = null) =>
      pageOf({ artifact: made, stage: { model_name } as Parameters<typeof pageOf>[0]["stage"] });
    expect(pageFor(artifact("deployment", { properties: { model_name: "m", version: 3 } }))).toBe(
      "/plugin/hops/models/m?dag=f&version=3",
    );
    expect(pageFor(artifact("evaluation", {}), "m")).toBe("/plugin/hops/models/m?dag=f");
    expect(pageFor(artifact("evaluation", { properties: { blessed: false } }), "m")).toMatch(
      "candidate=evaluation%2Ff%2Ft%2F-1%2Fr",
    );
    expect(pageFor(artifact("statistics", {}))).toMatch("/plugin/hops/data");
  });
});
