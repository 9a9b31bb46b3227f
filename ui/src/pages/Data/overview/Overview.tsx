import { Code } from "@chakra-ui/react";
import { useEffect, useMemo } from "react";
import { ApiError, api } from "src/api/client";
import { usePipelines } from "src/api/pipelines";
import { AppLink, Empty, ErrorAlert, LoadingRows, QueryView } from "src/components";
import { useQueryList } from "src/hooks/useQueryState";
import { expectedNames } from "src/pages/Data/overview/datasets";
import { Overlay } from "src/pages/Data/overview/Overlay";
import { prefetchTables } from "src/pages/Data/overview/queries";
import { type ArtifactRef, airflowDagPath, dataPath, parseArtifact, refOf } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

const KINDS = ["statistics", "skew"];

/** The statistics of every feature: of the artifacts in the address, or the last ones that there are. */
export function Overview() {
  const dagId = useDagId();
  const [named] = useQueryList("artifact");
  const refs = useMemo(
    () => named.map(parseArtifact).filter((ref): ref is ArtifactRef => ref !== null && KINDS.includes(ref.kind)),
    [named],
  );
  if (refs.length < named.length) {
    const wrong = `artifact is ${named.join(", ")}, expected kind/dag/task/index/run of kind ${KINDS.join(" or ")}`;
    return <ErrorAlert error={new ApiError(422, wrong)} />;
  }
  return refs.length ? <Overlay refs={refs} /> : <Latest dagId={dagId} kinds={KINDS} />;
}

/** The last artifact of the first of these kinds that there is one of. */
function Latest({ dagId, kinds }: { dagId: string; kinds: readonly string[] }) {
  const [kind, ...others] = kinds;
  const query = { with: kind, limit: 1 };
  const runs = api.useQuery("get", "/api/dags/{dag_id}/runs", { params: { path: { dag_id: dagId }, query } });
  const last = runs.data?.entries[0]?.artifacts.find((artifact) => artifact.kind === kind);
  const refs = useMemo(() => (last ? [refOf(last)] : []), [last]);
  useEffect(() => {
    if (last) {
      prefetchTables(expectedNames(last.properties).map((name) => ({ ref: refOf(last), name, slice: null })));
    }
  }, [last]);
  if (kind === undefined) {
    return <NoStatistics dagId={dagId} />;
  }
  return (
    <QueryView query={runs} loading={<LoadingRows rows={12} />}>
      {() => (refs.length ? <Overlay refs={refs} /> : <Latest dagId={dagId} kinds={others} />)}
    </QueryView>
  );
}

function NoStatistics({ dagId }: { dagId: string }) {
  const { data, isPending } = usePipelines();
  const stages = data?.entries.find(({ dag_id }) => dag_id === dagId)?.stages;
  if (isPending) {
    return <LoadingRows rows={12} />;
  }
  if (stages && !stages.some((stage) => KINDS.includes(stage))) {
    return (
      <Empty title="This pipeline computes no statistics">
        {dagId} has no <Code>StatisticsOperator</Code>. Its rows are in{" "}
        <AppLink to={dataPath(dagId, { tab: "dive" })}>Dive</AppLink>.
      </Empty>
    );
  }
  return (
    <Empty title="No statistics yet">
      They appear once a <Code>StatisticsOperator</Code> of this pipeline has finished, or a <Code>SkewOperator</Code>{" "}
      has compared served data with the training data. Start a run on{" "}
      <AppLink to={airflowDagPath(dagId)}>the page of {dagId}</AppLink>.
    </Empty>
  );
}
