import type { ReactElement } from "react";
import type { Schemas } from "src/api/client";
import type { Overview } from "src/api/pipelines";
import { HistoryList } from "src/pages/Models/HistoryList";
import { historyOf } from "src/pages/Models/history";
import { Waiting } from "src/pages/Overview/Waiting";
import { RunCell } from "src/pages/Pipelines/RunCell";
import { linksOf, rendered } from "src/rendered";
import { expect, test } from "vitest";

const HOSTILE = "AUC <img src=x onerror=alert(1)>";
const AT = "2026-03-01T10:00:00Z";
const TASK = { dag_id: "churn", run_id: "r", task_id: "evaluate", map_index: -1, iteration: -1 };

/** What is shown, as text, and where its links lead. */
function shown(element: ReactElement): { text: string; links: string[] } {
  const html = rendered(element);
  const text = html
    .replaceAll(/<[^>]*>/g, "")
    .replaceAll("&lt;", "<")
    .replaceAll("&gt;", ">");
  return { text, links: linksOf(html) };
}

const STAGES = ["prepare", "train"].map((task_id, place) => ({
  task_id, stage: task_id, state: place === 0 ? "success" : "running", instances: 1, ended: 1 - place,
})); // biome-ignore format: as a table
const VERDICT = { task_id: "train", map_index: -1, iteration: -1, why: HOSTILE };
const RUN = {
  run_id: "r", state: "success", run_type: "manual", run_after: AT, started_at: AT, ended_at: AT, duration_s: 9,
  stages: STAGES, refusals: [], failure: null,
}; // biome-ignore format: as a table

test.each([
  [{ state: "failed", failure: { ...VERDICT, verdict: "failed" } }, `train: ${HOSTILE}`, "failed"],
  [{ state: "running", ended_at: null }, "1/2 train", "running"],
  [{ refusals: [{ ...VERDICT, verdict: "not blessed" }] }, `train: ${HOSTILE}`, "not blessed"],
])("a run says where it is, or why it failed or was refused: %o", (changes, text, state) => {
  const run = { ...RUN, ...changes } as unknown as Schemas["LastRun"];
  const cell = shown(<RunCell dagId="churn" run={run} isPaused={false} />);
  expect(cell.text).toContain(text);
  expect(cell.text).toContain(state);
});

test("questions and proposals wait for a person, in words and with the way there", () => {
  const question = { state: "waiting", subject: "Data does not fit", asked_at: AT, deadline: null, may_answer: true };
  const overview = {
    pipeline: { dag_id: "churn", last_run: null, monitors: [] },
    waiting: [{ ...question, stage: "validation", task: TASK, assigned_to: ["ann"] }],
    proposed: [
      { validation: { ...TASK, kind: "anomalies" }, at: AT, features_total: 412, features: ["", ..."abcdefghijklmno"] },
    ],
  } as unknown as Overview;
  const { text, links } = shown(<Waiting overview={overview} />);
  expect(text).toContain("Assigned to ann.");
  expect(text).toContain(": the data set as a whole, a, b, c, d, e, f, g, h, i and 402 more.");
  expect(links).toHaveLength(2);
  expect(links.every((link) => /\/schema[?].*artifact=anomalies/.test(link))).toBe(true);
});

test("a refused candidate is among the decisions, with its reason and the way to its figures", () => {
  const candidate = { at: AT, why: HOSTILE, judged: { ...TASK, kind: "evaluation" }, champion_version: 1 };
  const { text, links } = shown(<HistoryList entries={historyOf([], [candidate as Schemas["Candidate"]])} />);
  expect(text).toContain("Candidate refused, and not deployed");
  expect(text).toContain(HOSTILE);
  expect(text).toContain("Its figures beside those of version 1");
  expect(links).toContain("/dags/churn/runs/r/tasks/evaluate/plugin/hops-task");
});
