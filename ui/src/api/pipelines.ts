import { useQueries } from "@tanstack/react-query";
import { api, refetchAfter, type Schemas } from "src/api/client";

const ALL = 1000;
const AT_ONCE = 50;
const BUSY_MS = 5_000;
const IDLE_MS = 30_000;
const UNFINISHED = new Set(["running", "queued"]);

export type Pipeline = Schemas["PipelineSummary"];
export type Activity = Schemas["Activity"];
export type Overview = Schemas["PipelineOverview"];

/** Whether a run of the pipeline, or of a DAG that watches it, goes on. */
function isBusy({ last_run, monitors }: Pipeline): boolean {
  return [last_run, ...monitors.map((monitor) => monitor.last_run)].some((run) => UNFINISHED.has(run?.state ?? ""));
}

/** The pipelines that the user may see, once `enabled`; with `live`, asked again for as long as they are shown. */
export function usePipelines({ live = false, enabled = true }: { live?: boolean; enabled?: boolean } = {}) {
  return api.useQuery(
    "get",
    "/api/pipelines",
    { params: { query: { limit: ALL } } },
    {
      enabled,
      staleTime: live ? BUSY_MS : IDLE_MS,
      refetchInterval: (query) =>
        live && refetchAfter(query.state.data?.entries.some(isBusy) ? BUSY_MS : IDLE_MS, query),
    },
  );
}

/** A pipeline at a glance; asked again for as long as it is shown. */
export function useOverview(dagId: string) {
  return api.useQuery(
    "get",
    "/api/dags/{dag_id}/overview",
    { params: { path: { dag_id: dagId } } },
    {
      staleTime: BUSY_MS,
      refetchInterval: (query) =>
        refetchAfter(query.state.data && isBusy(query.state.data.pipeline) ? BUSY_MS : IDLE_MS, query),
    },
  );
}

/** What stands for an answer that did not come. */
function unknown(dagIds: readonly string[], error: unknown): Record<string, unknown> {
  const problem = error instanceof Error ? error.message : "could not reach the API server";
  const finding = { state: "unknown", about: "server", text: "because the server was not asked", detail: problem };
  return Object.fromEntries(dagIds.map((dagId) => [dagId, { traffic: { problem, versions: [] }, health: [finding] }]));
}

/** What goes on with what some pipelines serve, by DAG; it comes when the model servers have answered. */
export function useActivity(dagIds: readonly string[]): Record<string, Activity | undefined> {
  const parts = Array.from({ length: Math.ceil(dagIds.length / AT_ONCE) }, (_, part) =>
    dagIds.slice(part * AT_ONCE, (part + 1) * AT_ONCE),
  );
  return useQueries({
    queries: parts.map((part) =>
      api.queryOptions(
        "get",
        "/api/pipelines/activity",
        { params: { query: { dag_id: part } } },
        { refetchInterval: (query) => refetchAfter(2 * BUSY_MS, query), retry: false },
      ),
    ),
    combine: (answers) => {
      const found = answers.map(({ data, error }, part) => data ?? (error ? unknown(parts[part] ?? [], error) : {}));
      return Object.assign({}, ...found) as Record<string, Activity>;
    },
  });
}
