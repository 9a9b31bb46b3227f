import { api, type Schemas } from "src/api/client";
import { useQuery } from "src/hooks/useQueryState";
import { type ArtifactRef, parseArtifact } from "src/routes";

export interface Start {
  versions: Schemas["DeployedVersion"][];
  /** What the lineage is of; null where there is nothing yet. */
  artifact: ArtifactRef | null;
  /** The version that was asked for and is not known. */
  unknown: string | null;
}

/** Where the lineage begins: the artifact in the address, a version, what serves, or the newest that was made. */
export function useStart(dagId: string) {
  const [query] = useQuery();
  const named = parseArtifact(query.get("artifact") ?? "");
  const path = { dag_id: dagId };
  const versions = api.useQuery("get", "/api/dags/{dag_id}/versions", { params: { path } }, { staleTime: 10_000 });
  const isDeployed = (versions.data ?? []).some(({ deployment }) => deployment !== null);
  const runs = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs",
    { params: { path, query: { limit: 20 } } },
    { enabled: named === null && versions.isSuccess && !isDeployed },
  );
  const start = (all: Schemas["DeployedVersion"][]): Start => {
    const version = query.get("version");
    const model = query.get("model");
    if (named) {
      return { versions: all, artifact: named, unknown: null };
    }
    if (version) {
      const asked = all.find((each) => String(each.version) === version && (!model || each.model === model));
      return { versions: all, artifact: asked?.deployment ?? null, unknown: asked?.deployment ? null : version };
    }
    const serving = all.find(({ role, deployment }) => role === "champion" && deployment !== null);
    const deployed = serving ?? all.find(({ deployment }) => deployment !== null);
    const newest = runs.data?.entries.find(({ artifacts }) => artifacts.length > 0)?.artifacts.at(-1) ?? null;
    return { versions: all, artifact: deployed?.deployment ?? newest, unknown: null };
  };
  return { versions, start, isLoading: runs.isLoading };
}
