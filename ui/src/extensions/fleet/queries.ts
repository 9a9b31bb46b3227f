/** What the API says of a fleet. */

import { keepPreviousData } from "@tanstack/react-query";
import { api, type Schemas } from "airflow-hops";

export type FleetPage = Schemas["FleetPage"];
export type SegmentEntry = Schemas["SegmentEntry"];

/** Which segments are asked for. */
export interface Wanted {
  version?: number;
  search?: string;
  state?: string[];
  only_drifted?: boolean;
  only_failed?: boolean;
  limit?: number;
}

/** The segments that matter most, of the newest version unless another is named. */
export function useFleet(dagId: string, model: string, wanted: Wanted = {}, enabled = true) {
  return api.useQuery(
    "get",
    "/api/dags/{dag_id}/models/{model}/fleet",
    { params: { path: { dag_id: dagId, model }, query: wanted } },
    { enabled, placeholderData: keepPreviousData },
  );
}

/** What happened to a segment. */
export function useSegment(dagId: string, model: string, key: string) {
  return api.useQuery("get", "/api/dags/{dag_id}/models/{model}/fleet/segment", {
    params: { path: { dag_id: dagId, model }, query: { key } },
  });
}

/** Statistics of a segment's training rows in the newest version. */
export function useStatistics(dagId: string, model: string, key: string) {
  return api.useQuery("get", "/api/dags/{dag_id}/models/{model}/fleet/statistics", {
    params: { path: { dag_id: dagId, model }, query: { key } },
  });
}
