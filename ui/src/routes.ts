/** The address of every page: ours, with what is looked at in the query, and the host's own. */

/** Where the host shows the pages. */
export const ROOT = "/plugin/hops";

/** A task instance, as the API names it. `map_index` is -1 unless the task is mapped, `iteration` unless it is in a loop. */
export interface TaskRef {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
  iteration: number;
}

type Position = Pick<TaskRef, "map_index" | "iteration">;

/** A task's instance in the API's paths: `-1`, `3` if it is mapped, in a loop `i2` or `i2@3`. */
export const instanceOf = ({ map_index, iteration }: Position): string =>
  iteration < 0 ? String(map_index) : `i${iteration}${map_index < 0 ? "" : `@${map_index}`}`;

/** The position that {@link instanceOf} wrote, or null. */
export function parseInstance(value: string): Position | null {
  const groups = /^(?:(?<index>-1|\d{1,9})|i(?<iteration>\d{1,9})(?:@(?<inner>\d{1,9}))?)$/.exec(value)?.groups;
  return groups
    ? { map_index: Number(groups.index ?? groups.inner ?? -1), iteration: Number(groups.iteration ?? -1) }
    : null;
}

/** What tells a task's instances apart, after its name: " [3]", " (iteration 2) [3]", or nothing. */
export const instanceLabel = ({ map_index, iteration }: Position, name: string | null = null): string =>
  (iteration < 0 ? "" : ` (iteration ${iteration})`) + (map_index < 0 ? "" : ` [${name ?? map_index}]`);

/** Addresses an artifact: what a task instance has made, and its kind. */
export interface ArtifactRef extends TaskRef {
  kind: string;
}

/** What addresses an artifact, of all that is said of it. */
export const refOf = ({ dag_id, run_id, task_id, map_index, iteration, kind }: ArtifactRef): ArtifactRef => ({
  dag_id,
  run_id,
  task_id,
  map_index,
  iteration,
  kind,
});

/** The parameters of the API's paths that address an artifact. */
export const pathOf = ({ dag_id, run_id, task_id, kind, ...position }: ArtifactRef) => ({
  dag_id,
  run_id,
  task_id,
  instance: instanceOf(position),
  kind,
});

/** Whether two artifacts are of the same task instance. */
export const isSameTask = (one: TaskRef, other: TaskRef): boolean =>
  one.dag_id === other.dag_id &&
  one.run_id === other.run_id &&
  one.task_id === other.task_id &&
  one.map_index === other.map_index &&
  one.iteration === other.iteration;

/** Pages of a pipeline, in the order of the navigation. */
export const PAGES = [
  { path: "overview", label: "Overview" },
  { path: "data", label: "Data" },
  { path: "schema", label: "Schema" },
  { path: "runs", label: "Runs" },
  { path: "models", label: "Models" },
  { path: "skew", label: "Skew" },
  { path: "lineage", label: "Lineage" },
] as const;

type Query = Record<string, string | number | readonly string[] | null | undefined>;

/** One query value for an artifact; {@link parseArtifact} reads it back. Only a run's id may have a slash in it. */
export function formatArtifact(ref: ArtifactRef): string {
  return [ref.kind, ref.dag_id, ref.task_id, instanceOf(ref), ref.run_id].join("/");
}

/** The artifact that a query value names, or null where it names none. */
export function parseArtifact(value: string): ArtifactRef | null {
  const [kind, dagId, taskId, instance, ...rest] = value.split("/");
  const position = parseInstance(instance ?? "");
  if (!kind || !dagId || !taskId || rest.length === 0 || position === null) {
    return null;
  }
  return { kind, dag_id: dagId, task_id: taskId, ...position, run_id: rest.join("/") };
}

function withQuery(path: string, query: Query): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") {
        parameters.append(name, String(each));
      }
    }
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

/** The list of pipelines. */
export const pipelinesPath = (): string => ROOT;

/** Any page of a pipeline, with its own query. */
export const pagePath = (page: string, dagId: string, query: Query = {}): string =>
  withQuery(`${ROOT}/${page}`, { dag: dagId, ...query });

/** A pipeline at a glance. */
export const overviewPath = (dagId: string): string => pagePath("overview", dagId);

/** Data: statistics, one or several overlaid, of a split (and with a feature opened); or Dive, of their sampled rows. */
export const dataPath = (
  dagId: string,
  to: {
    tab?: "overview" | "dive";
    artifacts?: readonly ArtifactRef[];
    split?: string;
    feature?: string;
  } = {},
): string =>
  pagePath("data", dagId, {
    tab: to.tab === "overview" ? undefined : to.tab,
    artifact: to.artifacts?.map(formatArtifact),
    split: to.split,
    feature: to.feature,
  });

/** Schema and anomalies; with the anomalies of one validation, or one feature, where named. */
export const schemaPath = (dagId: string, to: { artifact?: ArtifactRef; feature?: string } = {}): string =>
  pagePath("schema", dagId, { artifact: to.artifact && formatArtifact(to.artifact), feature: to.feature });

/** Runs; with one opened, or several compared. */
export const runsPath = (
  dagId: string,
  to: { run?: string; compare?: readonly string[]; filter?: string } = {},
): string => pagePath("runs", dagId, { run: to.run, compare: to.compare, filter: to.filter });

/** A model, or all of a pipeline's; with one version or refused candidate opened, or a tab. */
export const modelsPath = (
  dagId: string,
  to: {
    model?: string;
    version?: string | number;
    candidate?: ArtifactRef;
    tab?: "evaluation" | "decisions" | "performance";
  } = {},
): string =>
  withQuery(to.model ? `${ROOT}/models/${encodeURIComponent(to.model)}` : `${ROOT}/models`, {
    dag: dagId,
    version: to.version,
    candidate: to.candidate && formatArtifact(to.candidate),
    tab: to.tab,
  });

/** Skew; of one feature, at one comparison, where named. */
export const skewPath = (dagId: string, to: { artifact?: ArtifactRef; feature?: string } = {}): string =>
  pagePath("skew", dagId, { artifact: to.artifact && formatArtifact(to.artifact), feature: to.feature });

/** The lineage of an artifact, or of a served version. */
export const lineagePath = (
  dagId: string,
  to: { artifact?: ArtifactRef; model?: string; version?: string | number } = {},
): string =>
  pagePath("lineage", dagId, {
    artifact: to.artifact && formatArtifact(to.artifact),
    model: to.model,
    version: to.version,
  });

/** The page that shows an artifact of this kind best. */
export function artifactPath(ref: ArtifactRef): string {
  switch (ref.kind) {
    case "statistics":
      return dataPath(ref.dag_id, { artifacts: [ref] });
    case "schema":
    case "anomalies":
      return schemaPath(ref.dag_id, { artifact: ref });
    case "skew":
      return skewPath(ref.dag_id, { artifact: ref });
    case "notebook":
      return resultPath(ref);
    default:
      return lineagePath(ref.dag_id, { artifact: ref });
  }
}

/** Airflow's page of a DAG. */
export const airflowDagPath = (dagId: string): string => `/dags/${encodeURIComponent(dagId)}`;

/** Airflow's page of a DAG run. */
export const airflowRunPath = (dagId: string, runId: string): string =>
  `${airflowDagPath(dagId)}/runs/${encodeURIComponent(runId)}`;

/** Airflow's page of a task instance, or a tab on it. */
export const airflowTaskPath = (ref: TaskRef, tab = ""): string =>
  `${airflowRunPath(ref.dag_id, ref.run_id)}/tasks/${encodeURIComponent(ref.task_id)}` +
  (ref.map_index >= 0 ? `/mapped/${ref.map_index}` : "") +
  tab +
  (ref.iteration >= 0 ? `?iteration=${ref.iteration}` : "");

/** Our tab on a task instance. */
export const resultPath = (ref: TaskRef): string => airflowTaskPath(ref, "/plugin/hops-task");
