import { passes } from "airflow-hops";
import {
  bestOf,
  bestSoFar,
  isSearching,
  namesOfStudy,
  parseStudy,
  type StudyDetail,
  studyKey,
  trialsOf,
} from "src/extensions/experiments/trials";
import { expect, test } from "vitest";

const STUDY = {
  metrics: ["auc", "latency"],
  importance: { lr: 0.8, opt: 0.1 },
  columns: {
    number: [0, 1, 2, 3],
    state: ["complete", "pruned", "complete", "running"],
    params: { epochs: [3, 3, 3, 3], opt: ["adam", "sgd", "adam", "sgd"], lr: [0.1, 0.01, 0.001, null] },
    values: [
      [0.7, null, 0.6, null],
      [5, null, 2, null],
    ],
    reason: ["", "pruned at step 3", "", ""],
    started: ["2026-11-20T10:00:00+00:00", "", "", ""],
    seconds: [2.5, 1, 1, null],
    tries: [1, 1, 2, 1],
    taken_from: [null, null, "earlier#4", null],
    training: [null, null, null, null],
  },
} as unknown as StudyDetail;
const TRIALS = trialsOf(STUDY);

test("columns become a row for each trial, with what charts compare", () => {
  expect(TRIALS[0]).toMatchObject({
    run_id: "0",
    params: { epochs: "3", opt: "adam", lr: "0.1" },
    metrics: { auc: 0.7, latency: 5 },
  });
  expect((TRIALS[0]?.end_time ?? 0) - (TRIALS[0]?.start_time ?? 0)).toBe(2500);
  expect(TRIALS[3]).toMatchObject({ params: { opt: "sgd" }, values: [null, null], seconds: null, end_time: null });
  const brush = { key: "params.lr", low: 0.05, high: 1, words: null };
  expect(TRIALS.filter((trial) => passes(trial, [brush])).map(({ number }) => number)).toEqual([0]);
});

test("the best so far is of complete trials, and of the metric's direction", () => {
  expect(bestSoFar(TRIALS, 0, "maximize")).toEqual([[0, 0.7], [2, 0.7]]); // biome-ignore format: pairs
  expect(bestSoFar(TRIALS, 1, "minimize")).toEqual([[0, 5], [2, 2]]); // biome-ignore format: pairs
  expect(bestOf(TRIALS, 0, "maximize", 1).map(({ number }) => number)).toEqual([0]);
  expect(bestOf(TRIALS, 1, "minimize", 1).map(({ number }) => number)).toEqual([2]);
  expect(bestOf(TRIALS, 1, "minimize", 9).map(({ number }) => number)).toEqual([0, 2]);
});

test("parameters are ordered by importance, and constants do not vary", () => {
  expect(namesOfStudy(STUDY)).toMatchObject({ params: ["lr", "opt", "epochs"], varying: ["lr", "opt"] });
});

test("a study whose task has ended does not search, whatever its record says", () => {
  expect(isSearching({ state: "running", task_state: "running" })).toBe(true);
  expect(isSearching({ state: "running", task_state: "up_for_retry" })).toBe(true);
  expect(isSearching({ state: "running", task_state: "failed" })).toBe(false);
  expect(isSearching({ state: "complete", task_state: "running" })).toBe(false);
});

test("a study's address comes back, a name with slashes in it too", () => {
  const study = { task_id: "search", map_index: -1, iteration: -1, name: "manual__2026-11-20T10:00:00+00:00/a" };
  expect(parseStudy(studyKey(study))).toEqual(study);
  expect([parseStudy("search"), parseStudy("search/x/a"), parseStudy("search/-1/")]).toEqual([null, null, null]);
});
