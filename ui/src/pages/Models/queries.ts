/** What the API says of models; shared by the parts of the page that ask the same. */

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { api, apiAddress, refetchAfter, type Schemas } from "src/api/client";
import { useQueryParam } from "src/hooks/useQueryState";
import { type ArtifactRef, pathOf } from "src/routes";

export type LiveModel = Schemas["LiveModel"];
export type ModelDetail = Schemas["ModelDetail"];
export type Decision = Schemas["Decision"];

/** Milliseconds between looks at the server: it adds a step every ten seconds. */
export const LIVE_MS = 5_000;
export const RECORD_MS = 15_000;

const path = (dagId: string, model: string) => ({ dag_id: dagId, model });

/** Where the model card of a version is downloaded. */
export const cardAddress = (dagId: string, model: string, version: number): string =>
  apiAddress("dags", dagId, "models", model, "versions", String(version), "card");

/** How to ask what serves of a model, and for the decisions on it. */
export function modelOptions(dagId: string, model: string) {
  return api.queryOptions(
    "get",
    "/api/dags/{dag_id}/models/{model}",
    { params: { path: path(dagId, model) } },
    { refetchInterval: (query) => refetchAfter(RECORD_MS, query) },
  );
}

/** What serves of a model, and the decisions on it. */
export const useModel = (dagId: string, model: string) => useQuery(modelOptions(dagId, model));

const PAGE = 50;

/** A model's versions in pages, the newest first. */
export function useVersions(dagId: string, model: string) {
  return api.useInfiniteQuery(
    "get",
    "/api/dags/{dag_id}/models/{model}/versions",
    { params: { path: path(dagId, model), query: { limit: PAGE } } },
    {
      pageParamName: "offset",
      initialPageParam: 0,
      getNextPageParam: (page, pages) => (PAGE * pages.length < page.total_entries ? PAGE * pages.length : undefined),
      refetchInterval: (query) => refetchAfter(RECORD_MS, query),
    },
  );
}

/** How to ask how a model serves now. */
export function liveOptions(dagId: string, model: string, minutes: number) {
  return api.queryOptions(
    "get",
    "/api/dags/{dag_id}/models/{model}/live",
    { params: { path: path(dagId, model), query: { minutes } } },
    { refetchInterval: (query) => refetchAfter(LIVE_MS, query), placeholderData: keepPreviousData },
  );
}

/** Spans of time that the live figures can be shown for, in minutes. */
export const SPANS = [5, 15, 60] as const;
const USUAL = 15;

/** How many minutes the live figures are shown for; kept in the address. */
export function useMinutes(): [number, (minutes: number) => void] {
  const [text, setText] = useQueryParam("minutes", String(USUAL));
  const minutes = SPANS.find((each) => String(each) === text) ?? USUAL;
  return [minutes, (chosen) => setText(String(chosen))];
}

/** The newest measurement of a model's served versions. */
export const usePerformance = (dagId: string, model: string, label: string) =>
  api.useQuery("get", "/api/dags/{dag_id}/models/{model}/performance", {
    params: { path: path(dagId, model), query: { label: label || undefined } },
  });

export type PerformanceReport = NonNullable<NonNullable<ReturnType<typeof usePerformance>["data"]>["report"]>;
export type VersionPerformance = PerformanceReport["versions"][number];

/** The evaluation of a version. */
export function useEvaluation(dagId: string, model: string, version: number) {
  return api.useQuery("get", "/api/dags/{dag_id}/models/{model}/versions/{version}/evaluation", {
    params: { path: { ...path(dagId, model), version } },
  });
}

/** The evaluation of a candidate, by the task that made it. */
export function useCandidateEvaluation(judged: ArtifactRef) {
  return api.useQuery("get", "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/evaluation", {
    params: { path: pathOf(judged) },
  });
}
