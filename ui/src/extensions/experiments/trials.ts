/** Trials of a study: rows of the API's columns, the best so far, and what the charts of runs compare. */

import { type Compared, instanceOf, type Names, parseInstance, type Schemas } from "airflow-hops";

export type Study = Schemas["StudyEntry"];
export type StudyDetail = Schemas["StudyDetail"];

export interface Trial extends Compared {
  number: number;
  state: string;
  values: (number | null)[];
  reason: string;
  started: string;
  seconds: number | null;
  tries: number;
  taken_from: string | null;
  training: string | null;
}

/** What a parameter's value is called. */
export const inWords = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));

/** A row for each trial. */
export function trialsOf({ columns, metrics }: Pick<StudyDetail, "columns" | "metrics">): Trial[] {
  const params = Object.entries(columns.params);
  return columns.number.map((number, place) => {
    const values = columns.values.map((each) => each[place] ?? null);
    const start = Date.parse(columns.started[place] ?? "");
    const seconds = columns.seconds[place] ?? null;
    return {
      run_id: String(number),
      name: `trial ${number}`,
      dag_run_id: null,
      map_index: -1,
      iteration: -1,
      start_time: start,
      end_time: seconds === null ? null : start + 1000 * seconds,
      params: Object.fromEntries(
        params.flatMap(([name, each]) => {
          const value: unknown = each[place] ?? null;
          return value === null ? [] : [[name, inWords(value)]];
        }),
      ),
      metrics: Object.fromEntries(metrics.map((name, metric) => [name, values[metric] ?? null])),
      number,
      state: columns.state[place] ?? "",
      values,
      reason: columns.reason[place] ?? "",
      started: columns.started[place] ?? "",
      seconds,
      tries: columns.tries[place] ?? 1,
      taken_from: columns.taken_from[place] ?? null,
      training: columns.training[place] ?? null,
    };
  });
}

/** Whether one value of a metric is better than another. */
export const isBetter = (direction: string | undefined, one: number, other: number): boolean =>
  direction === "minimize" ? one < other : one > other;

/** The best value so far of a metric at each complete trial, in the order of their numbers. */
export function bestSoFar(
  trials: readonly Pick<Trial, "number" | "values">[],
  metric: number,
  direction: string | undefined,
): [number, number][] {
  let best: number | null = null;
  return trials.flatMap(({ number, values }) => {
    const value = values[metric] ?? null;
    if (value === null) {
      return [];
    }
    best = best === null || isBetter(direction, value, best) ? value : best;
    return [[number, best] as [number, number]];
  });
}

/** The best complete trials by a metric, at most so many, in the order of their numbers. */
export function bestOf<Row extends Pick<Trial, "number" | "values">>(
  trials: readonly Row[],
  metric: number,
  direction: string | undefined,
  most: number,
): Row[] {
  const sign = direction === "minimize" ? 1 : -1;
  const complete = trials.filter(({ values }) => typeof values[metric] === "number");
  return complete
    .sort((one, other) => sign * ((one.values[metric] ?? 0) - (other.values[metric] ?? 0)))
    .slice(0, most)
    .sort((one, other) => one.number - other.number);
}

/** Names for the charts: parameters that vary first, by their importance where it is known. */
export function namesOfStudy({ columns, metrics, importance }: StudyDetail): Names {
  const weight = (name: string) => importance[name] ?? 0;
  const params = Object.keys(columns.params).sort((a, b) => weight(b) - weight(a) || a.localeCompare(b));
  return {
    metrics: [...metrics],
    params,
    varying: params.filter((name) => new Set((columns.params[name] ?? []).map(inWords)).size > 1),
    headline: [...metrics],
    severalTasks: false,
  };
}

const ENDED = ["success", "failed", "skipped", "upstream_failed", "removed"];

/** Whether a study's search goes on, or will by a retry: the record of one that was killed says for ever that it runs. */
export const isSearching = ({ state, task_state }: Pick<Study, "state" | "task_state">): boolean =>
  state === "running" && !ENDED.includes(task_state ?? "");

/** What addresses a study. */
export type StudyRef = Pick<Study, "task_id" | "map_index" | "iteration" | "name">;

/** One value for the address of a study. */
export const studyKey = ({ task_id, name, ...position }: StudyRef): string =>
  `${task_id}/${instanceOf(position)}/${name}`;

/** What addresses the study that a value of the address names, or null where it names none. */
export function parseStudy(value: string): StudyRef | null {
  const [task_id, instance, ...rest] = value.split("/");
  const position = parseInstance(instance ?? "");
  const name = rest.join("/");
  return task_id && name && position ? { task_id, ...position, name } : null;
}
