import { isLoss } from "src/pages/Models/words";
import { type Curve, figuresOf, pointsOf, smooth } from "src/pages/Runs/curves";
import { durationOf, labelOf, legendLabels, namesOf, type Run, shortened } from "src/pages/Runs/figures";
import { describe, expect, test } from "vitest";

function runOf(params: Record<string, string>, metrics: Record<string, number>): Run {
  return {
    run_id: "r", name: "flights.train", dag_run_id: "manual__1", dag_run_state: "success", map_index: -1, iteration: -1,
    status: "FINISHED", start_time: 1000, end_time: 3500, params, metrics, tags: {},
  } as unknown as Run; // biome-ignore format: as a row
}

const RUNS = [
  runOf({ lr: "0.1", layers: "2", opt: "adam" }, { val_auc: 0.7, loss: 0.4, "model.size": 3 }),
  runOf({ lr: "0.001", layers: "2", opt: "sgd" }, { val_auc: 0.8, loss: 0.3, "eval/f1 score": 0.5 }),
];
const NAMES = namesOf(RUNS);

describe("figures of runs", () => {
  test("names are ordered by what says most, and parameters that vary are known", () => {
    expect(NAMES.metrics).toEqual(["val_auc", "loss", "eval/f1 score", "model.size"]);
    expect(NAMES.params).toEqual(["layers", "lr", "opt"]);
    expect(NAMES.varying).toEqual(["lr", "opt"]);
  });

  test("checksums come last, are no columns of their own, and are shortened", () => {
    const digests = ["3a53aa0f6e8573bf1739038b6302ab7e", "e6d8acf2f45e80bb81bcfbd8f5d5a1b2"];
    const names = namesOf(digests.map((code, place) => runOf({ code, deadbeef: "no", lr: `0.${place}` }, {})));
    expect(names.params).toEqual(["deadbeef", "lr", "code"]);
    expect(names.varying).toEqual(["lr"]);
    expect([digests[0] ?? "", "deadbeef", "feedfacefeedface", 7].map(shortened)).toEqual([
      "3a53aa0f…",
      "deadbeef",
      "feedfacefeedface",
      "7",
    ]);
  });

  test("a run that goes on has no duration", () => {
    expect(RUNS.map(durationOf)).toEqual([2.5, 2.5]);
    expect(durationOf({ start_time: 1, end_time: null })).toBeNull();
  });

  test("a trial is named by its run", () => {
    expect(labelOf({ dag_run_id: null, name: "train", map_index: 0, iteration: -1 })).toBe("train [0]");
    const trial = {
      dag_run_id: "manual__1",
      name: "trial 7",
      map_index: -1,
      iteration: -1,
      tags: { "hops.trial": "7" },
    };
    expect(labelOf(trial)).toBe("manual__1, trial 7");
  });

  test("a legend has short names, and long ones where short ones would be the same", () => {
    const at = (id: string) => ({ dag_run_id: id, name: "train", map_index: -1, iteration: -1 });
    const [one, two] = ["manual__2026-11-20T17:11:03+00:00_x", "manual__2026-11-20T17:11:09+00:00_y"] as const;
    const other = "asset_triggered__2026-11-20T17:11:03+00:00_x";
    expect(legendLabels([one, other, "my run"].map(at))).toEqual(["manual 11-20 17:11", "asset 11-20 17:11", "my run"]);
    expect(legendLabels([one, two].map(at))).toEqual(["manual 11-20 17:11:03", "manual 11-20 17:11:09"]);
    const three = one.replace("_x", "_z");
    expect(legendLabels([one, three].map(at))).toEqual([one, three]);
  });

  test("trainings of one DAG run are told apart by their tasks", () => {
    const trained = ["keras", "lightgbm"].map((task_id) => ({ ...runOf({}, {}), task_id }) as Run);
    expect(namesOf(trained).severalTasks).toBe(true);
    expect(legendLabels(trained)).toEqual(["keras: manual__1", "lightgbm: manual__1"]);
    expect(trained.map((run) => labelOf(run))).toEqual(["keras: manual__1", "lightgbm: manual__1"]);
    expect(legendLabels(trained.slice(1))).toEqual(["manual__1"]);
  });

  test("the first figures are those of quality, before those of time and of the champion", () => {
    const { headline } = namesOf([
      runOf({}, { "model.examples_per_second": 9, "evaluation.champion_eval_auc": 0.6, "evaluation.eval_auc": 0.7 }),
    ]);
    expect(headline).toEqual(["evaluation.eval_auc", "evaluation.champion_eval_auc"]);
    const evaluated = {
      "evaluation.blessed": 1,
      "evaluation.newest_auc": 0.6,
      "evaluation.eval_auc": 0.7,
      val_auc: 0.8,
    };
    expect(namesOf([runOf({}, evaluated)]).metrics).toEqual([
      "evaluation.eval_auc",
      "val_auc",
      "evaluation.newest_auc",
    ]);
  });

  test("less is better of losses, errors and times", () => {
    expect(["val_loss", "eval_mae", "epoch_seconds", "brier"].every(isLoss)).toBe(true);
    expect(["auc", "accuracy", "f1"].some(isLoss)).toBe(false);
  });
});

describe("learning curves", () => {
  const curve = (metric: string, values: (number | null)[], steps = values.map((_, index) => index)): Curve =>
    ({ run_id: "r", metric, points: 1, steps, values, times: steps.map((step) => 10_000 + 500 * step) }) as Curve;

  test("training and validation share a figure, the loss comes first, single points have none", () => {
    const found = figuresOf([
      curve("auc", [1, 2]),
      curve("val_loss", [1, 2]),
      curve("loss", [2, 1]),
      curve("once", [1]),
      curve("same", [1, 2], [4, 4]),
    ]);
    expect(found.map(({ name, curves }) => [name, curves.length])).toEqual([
      ["loss", 2],
      ["auc", 1],
    ]);
  });

  test("points lie over steps, seconds since the start, or time; gaps stay", () => {
    const gap = curve("loss", [3, null], [2, 4]);
    expect(pointsOf(gap, "step", 0)).toEqual([
      [2, 3],
      [4, null],
    ]);
    expect(pointsOf(gap, "relative", 10_000)).toEqual([
      [1, 3],
      [2, null],
    ]);
    expect(pointsOf(gap, "time", 0)).toEqual([
      [11_000, 3],
      [12_000, null],
    ]);
  });

  test("smoothing has no bias to the first value, and a constant stays what it is", () => {
    expect(
      smooth(
        [
          [0, 5],
          [1, null],
          [2, 7],
        ],
        0,
      ),
    ).toEqual([
      [0, 5],
      [1, null],
      [2, 7],
    ]);
    for (const [, y] of smooth(
      Array.from({ length: 9 }, (_, x) => [x, 4]),
      0.9,
    )) {
      expect(y).toBeCloseTo(4, 12);
    }
    const [, [, second]] = smooth(
      [
        [0, 1],
        [1, 3],
      ],
      0.5,
    ) as [[number, number], [number, number]];
    expect(second).toBeCloseTo((0.25 * 1 + 0.5 * 3) / 0.75, 12);
  });
});
