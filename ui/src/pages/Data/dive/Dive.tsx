import { useMemo } from "react";
import { ApiError, api, type Schemas } from "src/api/client";
import { Empty } from "src/components/Empty";
import { ErrorAlert } from "src/components/ErrorAlert";
import { LoadingBox } from "src/components/Loading";
import { QueryView } from "src/components/QueryView";
import { useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { Explorer } from "src/pages/Data/dive/Explorer";
import { SourceBar } from "src/pages/Data/dive/SourceBar";
import { sourcesOf } from "src/pages/Data/dive/sources";
import { type ArtifactRef, parseArtifact, pathOf } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

const PATH = "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}" as const;

/** Sampled rows of statistics, placed, faceted and coloured by their features. */
export function Dive() {
  const dagId = useDagId();
  const [artifacts] = useQueryList("artifact");
  const runs = api.useQuery("get", "/api/dags/{dag_id}/runs", {
    params: { path: { dag_id: dagId }, query: { limit: 100, with: "statistics" } },
  });
  const found = useMemo(() => sourcesOf(runs.data?.entries ?? []), [runs.data]);
  const named = artifacts[0];
  const first = found[0]?.sources[0];
  const ref =
    useMemo(() => (named === undefined ? null : parseArtifact(named)), [named]) ?? (named ? null : first?.ref);
  if (named !== undefined && !ref) {
    return <ErrorAlert error={new ApiError(422, `artifact is ${named}, expected kind/dag/task/index/run`)} />;
  }
  if (!ref) {
    return (
      <QueryView query={runs} loading={<LoadingBox height="60vh" />}>
        {() => (
          <Empty title="No rows yet">
            Rows appear here once the StatisticsOperator of a run of {dagId} has sampled them. Trigger the DAG to start
            one.
          </Empty>
        )}
      </QueryView>
    );
  }
  return <OfArtifact key={JSON.stringify(ref)} artifact={ref} runs={found} />;
}

function OfArtifact({ artifact, runs }: { artifact: ArtifactRef; runs: ReturnType<typeof sourcesOf> }) {
  const params = { path: pathOf(artifact) };
  const detail = api.useQuery("get", PATH, { params });
  const splits = api.useQuery("get", `${PATH}/splits`, { params });
  const [chosen] = useQueryParam("split");
  const failed = detail.error ?? splits.error;
  const alert = failed && (
    <ErrorAlert error={failed} retry={() => void Promise.all([detail.refetch(), splits.refetch()])} />
  );
  if (!detail.data || !splits.data) {
    return (
      <>
        <SourceBar artifact={artifact} runs={runs} splits={null} split="" />
        {alert ?? <LoadingBox height="60vh" />}
      </>
    );
  }
  const all = splits.data;
  const split = chosen in all ? chosen : firstSplit(all);
  const content = all[split];
  return (
    <>
      <SourceBar artifact={artifact} runs={runs} splits={all} split={split} />
      {alert}
      {content === undefined ? (
        <Empty title="No rows in this artifact">
          {artifact.kind} of {artifact.task_id} has no sampled rows: statistics have them.
        </Empty>
      ) : content.rows === 0 ? (
        <Empty title={`No rows in ${split}`}>Choose another split above.</Empty>
      ) : (
        <Explorer key={split} artifact={artifact} split={split} content={content} properties={detail.data.properties} />
      )}
    </>
  );
}

function firstSplit(splits: Record<string, Schemas["SplitRows"]>): string {
  const names = Object.keys(splits);
  const largest = names.reduce(
    (most, name) => ((splits[name]?.rows ?? 0) > (splits[most]?.rows ?? -1) ? name : most),
    "",
  );
  return names.includes("train") ? "train" : largest;
}
