/** What the page asks the API. */

import { keepPreviousData } from "@tanstack/react-query";
import { ApiError, api, client, queryClient, refetchAfter, type Schemas } from "src/api/client";
import { basePath } from "src/host";
import { type ArtifactRef, pathOf } from "src/routes";

export type SchemaSummary = Schemas["SchemaSummary"];
export type SchemaFeature = Schemas["SchemaFeature"];
export type SchemaDetail = Schemas["SchemaDetail"];
export type SchemaComparison = Schemas["SchemaComparison"];
export type ValidationEntry = Schemas["ValidationEntry"];
export type AnomalousFeature = Schemas["AnomalousFeature"];
export type ValidationReport = Schemas["ValidationReport"];
export type ProposalReview = Schemas["ProposalReview"];
export type Question = Schemas["Question"];

/** Validations on one page of the timeline. */
export const PER_PAGE = 30;
const NOWHERE: ArtifactRef = { dag_id: "", run_id: "", task_id: "", map_index: -1, iteration: -1, kind: "anomalies" };
const WHILE_IT_RUNS_MS = 5_000;
const RUNNING = new Set(["running", "queued", "awaiting_input", "deferred", "scheduled"]);

export const useSchemas = (dagId: string) =>
  api.useQuery("get", "/api/dags/{dag_id}/schemas", { params: { path: { dag_id: dagId } } });

/** What a schema says; `version` null for what lies there now. */
export const useSchema = (dagId: string, name: string, version: number | null, enabled = true) =>
  api.useQuery(
    "get",
    "/api/dags/{dag_id}/schemas/{name}",
    { params: { path: { dag_id: dagId, name }, query: version === null ? {} : { version } } },
    { placeholderData: keepPreviousData, enabled },
  );

/** The validations of a pipeline; asked again while one of them runs or waits. */
export const useValidations = (dagId: string, page = 0) =>
  api.useQuery(
    "get",
    "/api/dags/{dag_id}/validations",
    { params: { path: { dag_id: dagId }, query: { limit: PER_PAGE, offset: page * PER_PAGE } } },
    {
      placeholderData: keepPreviousData,
      refetchInterval: (query) =>
        query.state.data?.entries.some((each) => RUNNING.has(each.task_state ?? "") || each.run_state === "running")
          ? refetchAfter(WHILE_IT_RUNS_MS, query)
          : false,
    },
  );

/** One validation in full. */
export const useReport = (address: ArtifactRef | undefined, enabled = true) =>
  api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/anomalies",
    { params: { path: pathOf(address ?? NOWHERE) } },
    { enabled: enabled && address !== undefined },
  );

const PROPOSAL = "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/proposal";

/** What a validation proposes to change of the schema. */
export const useProposal = (address: ArtifactRef, enabled: boolean) =>
  api.useQuery("get", PROPOSAL, { params: { path: pathOf(address) } }, { enabled });

/** What was decided on the proposed schema. */
export const useReview = (address: ArtifactRef, enabled = true) =>
  api.useQuery("get", `${PROPOSAL}/review`, { params: { path: pathOf(address) } }, { enabled });

/** Approves the proposed schema or rejects it, as it was when it was `seen`. */
export async function decide(
  address: ArtifactRef,
  choice: "approve" | "reject",
  reason: string,
  seen: ProposalReview,
): Promise<void> {
  const body = { choice, reason, fingerprint: seen.fingerprint, decisions: seen.decisions.length };
  try {
    await client.POST(PROPOSAL, { params: { path: pathOf(address) }, body });
  } finally {
    await queryClient.invalidateQueries();
  }
}

/** Asks anew what the schemas are: a run may have published another version. */
export const refreshSchemas = (): Promise<void> =>
  queryClient.invalidateQueries({
    predicate: ({ queryKey: [, path] }) => typeof path === "string" && path.startsWith("/api/dags/{dag_id}/schemas"),
  });

/** Answers a question through Airflow's own route, with its rights and its audit log. */
export async function answer(task: ArtifactRef, option: string, note: string): Promise<void> {
  const [dag, run, id] = [task.dag_id, task.run_id, task.task_id].map(encodeURIComponent);
  const path = `api/v2/dags/${dag}/dagRuns/${run}/taskInstances/${id}/${task.map_index}/hitlDetails`;
  const response = await fetch(basePath() + path, {
    method: "PATCH",
    credentials: "same-origin",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ chosen_options: [option], params_input: { note } }),
  });
  if (!response.ok) {
    const { detail } = (await response.json().catch(() => ({}))) as { detail?: unknown };
    throw new ApiError(response.status, typeof detail === "string" ? detail : response.statusText);
  }
}
