import { api, pathOf, type Schemas } from "airflow-hops";
import type { SharedDataset } from "src/extensions/sharing/words";

/** What is compared of a feature; null where it is not known. */
export interface FeatureFigures {
  type: string;
  missing: number | null;
  mean: number | null;
  min: number | null;
  max: number | null;
  unique: number | null;
  top: string;
}

/** Figures by the feature's name, without its table where that is clear. */
export type Features = ReadonlyMap<string, FeatureFigures>;

const numberOf = (value: unknown): number | null => (typeof value === "number" ? value : null);

/** The figures in a data set's entry. */
export function featuresOf({ features }: SharedDataset): Features {
  const names = Object.keys(features);
  const tables = new Set(names.map((name) => name.split(".", 1)[0]));
  return new Map(
    Object.entries(features).map(([name, of]) => [
      tables.size === 1 ? name.slice(name.indexOf(".") + 1) : name,
      {
        type: String(of["type"] ?? ""),
        missing: numberOf(of["missing"]),
        mean: numberOf(of["mean"]),
        min: numberOf(of["min"]),
        max: numberOf(of["max"]),
        unique: numberOf(of["unique"]),
        top: Array.isArray(of["top"]) ? of["top"].slice(0, 3).join(", ") : "",
      },
    ]),
  );
}

/** The figures in a table of the API's statistics. */
export function figuresOf(table: Schemas["FeatureTable"]): Features {
  return new Map(
    table.names.map((name, index) => [
      name,
      {
        type: table.types[index] ?? "",
        missing: table.rows > 0 ? (table.missing[index] ?? 0) / table.rows : null,
        mean: table.mean[index] ?? null,
        min: table.quantiles[index]?.[0] ?? null,
        max: table.quantiles[index]?.at(-1) ?? null,
        unique: table.unique[index] ?? null,
        top: (table.top_values[index] ?? [])
          .slice(0, 3)
          .map(([value]) => value)
          .join(", "),
      },
    ]),
  );
}

/** The first data set of the newest statistics of a pipeline. */
export function usePipelineFeatures(dagId: string | null): { features: Features; problem: string | null } {
  const enabled = dagId !== null;
  const query = { with: "statistics", limit: 1 } as const;
  const runs = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs",
    { params: { path: { dag_id: dagId ?? "" }, query } },
    { enabled },
  );
  const artifact = runs.data?.entries[0]?.artifacts.find(({ kind }) => kind === "statistics");
  const path = pathOf(
    artifact ?? { dag_id: "", run_id: "", task_id: "", map_index: -1, iteration: -1, kind: "statistics" },
  );
  const ARTIFACT = "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}";
  const listing = api.useQuery("get", `${ARTIFACT}/statistics`, { params: { path } }, { enabled: !!artifact });
  const dataset = listing.data?.datasets[0]?.name;
  const table = api.useQuery(
    "get",
    `${ARTIFACT}/statistics/features`,
    { params: { path, query: { dataset: dataset ?? "" } } },
    { enabled: !!artifact && dataset !== undefined },
  );
  const failure = runs.error ?? listing.error ?? table.error;
  const isEmpty = enabled && runs.isSuccess && !artifact;
  return {
    features: enabled && table.data ? figuresOf(table.data as Schemas["FeatureTable"]) : new Map(),
    problem: failure
      ? String(failure instanceof Error ? failure.message : failure.detail)
      : isEmpty
        ? `${dagId} has no statistics yet`
        : null,
  };
}
