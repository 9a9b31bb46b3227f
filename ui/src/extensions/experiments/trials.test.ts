import {
  asNumber,
  bestSoFar,
  isSearching,
  paramsOf,
  parseStudy,
  type StudyDetail,
  studyKey,
  trialsOf,
} from "src/extensions/experiments/trials";
import { expect, test } from "vitest";

const STUDY = {
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

test("columns become a row for each trial", () => {
  expect(TRIALS[0]).toMatchObject({
    number: 0,
    params: { epochs: "3", opt: "adam", lr: "0.1" },
    values: [0.7, 5],
    seconds: 2.5,
  });
  expect(TRIALS[3]).toMatchObject({ params: { opt: "sgd" }, values: [null, null], seconds: null });
});

test("the best so far is of complete trials, and of the metric's direction", () => {
  expect(bestSoFar(TRIALS, 0, "maximize")).toEqual([[0, 0.7], [2, 0.7]]); // biome-ignore format: pairs
  expect(bestSoFar(TRIALS, 1, "minimize")).toEqual([[0, 5], [2, 2]]); // biome-ignore format: pairs
});

test("a value is a number only if it is one", () => {
  expect(["1e-3", "", "adam", undefined, "Infinity"].map(asNumber)).toEqual([0.001, null, null, null, null]);
});

test("parameters that vary come first", () => {
  expect(paramsOf(STUDY.columns)).toEqual(["lr", "opt", "epochs"]);
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
