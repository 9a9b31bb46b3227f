import { api } from "src/api/client";
import { type ArtifactRef, pathOf } from "src/routes";

/** What a comparison came to; with its features, unless there may be thousands that nobody looks at. */
export function useSkewReport(artifact: ArtifactRef, { features = true }: { features?: boolean } = {}) {
  return api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/skew",
    { params: { path: pathOf(artifact), query: { features } } },
    { staleTime: Number.POSITIVE_INFINITY },
  );
}
