/** What runs have: names of parameters and metrics, which of them matter first, values by a column's key. */

import type { Schemas } from "src/api/client";
import { shortRun } from "src/format";
import { instanceLabel } from "src/routes";

export type Run = Schemas["TrainingRun"];

const DIGEST = /^(?=.*\d)[0-9a-f]{16,}$/i;

/** Whether a value is a checksum: what says that something differs, and not what. */
export const isDigest = (value: string | number | null | undefined): boolean =>
  typeof value === "string" && DIGEST.test(value);

/** A value for a table; of a checksum its beginning. */
export const shortened = (value: string | number): string =>
  isDigest(value) ? `${String(value).slice(0, 8)}…` : String(value);

/** Seconds from start to end; null of a run that has not ended. */
export function durationOf(run: { start_time: number; end_time: number | null }): number | null {
  return run.end_time === null ? null : (run.end_time - run.start_time) / 1000;
}

/** Whether a run goes on. */
export const isLive = (run: { status: string }): boolean => run.status === "RUNNING";

const toTheSecond = (runId: string): string => shortRun(runId, true);

/** The name to show: that of the DAG run, where there is one, and maybe of the task. */
export function labelOf(
  run: {
    dag_run_id: string | null;
    task_id?: string | null;
    name: string;
    map_index: number;
    iteration: number;
    tags?: Record<string, string>;
  },
  withTask = true,
  named = toTheSecond,
): string {
  const task = withTask && run.dag_run_id && run.task_id ? `${run.task_id}: ` : "";
  const trial = run.tags?.["hops.trial"];
  return `${task}${run.dag_run_id === null ? run.name : named(run.dag_run_id)}${instanceLabel(run)}${trial === undefined ? "" : `, trial ${trial}`}`;
}

/** Whether the runs are of several tasks, so that a DAG run's id does not tell them apart. */
export const areOfSeveralTasks = (runs: readonly { task_id?: string | null }[]): boolean =>
  new Set(runs.map(({ task_id }) => task_id)).size > 1;

/** Names for a legend: as much of a DAG run's id as tells it from the others. */
export function legendLabels(runs: readonly Parameters<typeof labelOf>[0][]): string[] {
  const withTask = areOfSeveralTasks(runs);
  const named = [(id: string) => shortRun(id), toTheSecond].map((each) =>
    runs.map((run) => labelOf(run, withTask, each)),
  );
  return runs.map((run, place) => {
    const found = named.find((labels) => labels.filter((label) => label === labels[place]).length === 1);
    return found?.[place] ?? labelOf(run, withTask, (id) => id);
  });
}

export interface Names {
  metrics: string[];
  /** Checksums last. */
  params: string[];
  /** Parameters that are not the same in all runs; checksums left out. */
  varying: string[];
  /** Metrics that say most of a training, first. */
  headline: string[];
  /** Whether the runs are of several tasks. */
  severalTasks: boolean;
}

const FIRST = ["val_auc", "val_accuracy", "val_loss", "auc", "accuracy", "loss"];
/** What a run's evaluation said of its model: 1 if it blessed it. */
export const VERDICT = "evaluation.blessed";
/** The figure that says most of a model, by its problem. */
const JUDGED = ["auc", "accuracy", "rmse", "mae"].map((name) => new RegExp(`^evaluation\\.(?!champion_).*_${name}$`));
const OF_TIME = /(^|[_.])(seconds|examples_per_second|scaling_efficiency)$/;

/** The names that any of the runs has. */
export function namesOf(runs: readonly Run[]): Names {
  const metrics = new Set<string>();
  const params = new Map<string, Set<string>>();
  for (const run of runs) {
    for (const name of Object.keys(run.metrics)) {
      metrics.add(name);
    }
    for (const [name, value] of Object.entries(run.params)) {
      params.set(name, (params.get(name) ?? new Set()).add(value));
    }
  }
  metrics.delete(VERDICT);
  const sorted = [...metrics].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const judged = JUDGED.flatMap((pattern) => sorted.filter((name) => pattern.test(name))).slice(0, 1);
  const ordered = [...judged, ...sorted.filter((name) => !judged.includes(name))];
  const digests = new Set([...params].filter(([, values]) => [...values].every(isDigest)).map(([name]) => name));
  const named = [...params.keys()].sort(
    (a, b) => Number(digests.has(a)) - Number(digests.has(b)) || a.localeCompare(b),
  );
  return {
    metrics: ordered,
    params: named,
    varying: named.filter((name) => !digests.has(name) && (params.get(name)?.size ?? 0) > 1),
    headline: ordered.filter((name) => !OF_TIME.test(name)).slice(0, 4),
    severalTasks: areOfSeveralTasks(runs),
  };
}

function rank(metric: string): number {
  const place = FIRST.indexOf(metric);
  if (place >= 0) {
    return place;
  }
  if (metric.startsWith("val_")) {
    return FIRST.length;
  }
  if (OF_TIME.test(metric) || metric.startsWith("evaluation.champion_")) {
    return FIRST.length + 4;
  }
  return metric.startsWith("model.") ? FIRST.length + 3 : metric.includes(".") ? FIRST.length + 2 : FIRST.length + 1;
}
