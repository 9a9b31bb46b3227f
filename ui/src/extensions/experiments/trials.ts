/** Trials of a study: rows of the API's columns, and the best so far. */

import { instanceOf, parseInstance, type Schemas } from "airflow-hops";

export type Study = Schemas["StudyEntry"];
export type StudyDetail = Schemas["StudyDetail"];

export interface Trial {
  number: number;
  state: string;
  params: Record<string, string>;
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

/** The number in a value, where it is one. */
export function asNumber(value: string | undefined): number | null {
  if (value === undefined || value === "") {
    return null;
  }
  const number = Number(value);
  return Number.isFinite(number) ? number : null;
}

/** A row for each trial. */
export function trialsOf({ columns }: Pick<StudyDetail, "columns">): Trial[] {
  const params = Object.entries(columns.params);
  return columns.number.map((number, place) => ({
    number,
    state: columns.state[place] ?? "",
    params: Object.fromEntries(
      params.flatMap(([name, each]) => {
        const value: unknown = each[place] ?? null;
        return value === null ? [] : [[name, inWords(value)]];
      }),
    ),
    values: columns.values.map((each) => each[place] ?? null),
    reason: columns.reason[place] ?? "",
    started: columns.started[place] ?? "",
    seconds: columns.seconds[place] ?? null,
    tries: columns.tries[place] ?? 1,
    taken_from: columns.taken_from[place] ?? null,
    training: columns.training[place] ?? null,
  }));
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

/** Names of the parameters, those that vary first. */
export function paramsOf({ params }: Pick<StudyDetail["columns"], "params">): string[] {
  const constant = (name: string) => Number(new Set((params[name] ?? []).map(inWords)).size < 2);
  return Object.keys(params).sort((a, b) => constant(a) - constant(b) || a.localeCompare(b));
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
