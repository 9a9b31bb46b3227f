import { Box, Text } from "@chakra-ui/react";
import { LuUnplug } from "react-icons/lu";
import type { Activity, Pipeline } from "src/api/pipelines";
import { type Column, column, Tooltip, TwoLines, WARNING } from "src/components";
import { formatCount } from "src/format";
import { type Share, TrafficBar } from "src/pages/Models/TrafficBar";
import { healthRank } from "src/pages/Pipelines/Health";
import { ModelCell } from "src/pages/Pipelines/ModelCell";
import { NameCell } from "src/pages/Pipelines/NameCell";
import { RetrainedCell } from "src/pages/Pipelines/RetrainedCell";
import { RunCell } from "src/pages/Pipelines/RunCell";

/** The columns of the list; what goes on with each is looked up by its DAG's id, and may not be there yet. */
export function pipelineColumns(activity: Record<string, Activity | undefined>): Column<Pipeline>[] {
  return [
    column("pipeline", "Pipeline", {
      fixed: true,
      width: 380,
      minWidth: 230,
      help: "Sorted by health, the worst first",
      value: (row) => `${healthRank(row, activity[row.dag_id])} ${row.display_name}`,
      render: (row) => <NameCell pipeline={row} activity={activity[row.dag_id]} />,
    }),
    column("run", "Last run", {
      width: 210,
      minWidth: 200,
      descendingFirst: true,
      help: "State, when it ended or started, and its stages: a square for each task, such as statistics or training",
      value: (row) => row.last_run?.run_after,
      render: (row) => <RunCell dagId={row.dag_id} run={row.last_run} isPaused={row.is_paused} />,
    }),
    column("champion", "Champion", {
      width: 190,
      minWidth: 185,
      descendingFirst: true,
      help: "The serving version, since when, and the metric that compares versions; sorted by the difference to the previous version",
      value: (row) => row.model?.metric?.gain?.difference ?? (row.model?.metric ? 0 : null),
      render: (row) => <ModelCell dagId={row.dag_id} model={row.model} />,
    }),
    column("traffic", "Traffic", {
      width: 150,
      minWidth: 130,
      descendingFirst: true,
      help: "Share of each version, and the requests that the model server has counted since it started; sorted by these",
      value: (row) => requestsOf(activity[row.dag_id]),
      render: (row) => <TrafficCell pipeline={row} activity={activity[row.dag_id]} />,
    }),
    column("retrained", "Last trained", {
      width: 170,
      minWidth: 120,
      descendingFirst: true,
      value: (row) => row.retraining?.at,
      render: (row) => <RetrainedCell dagId={row.dag_id} retraining={row.retraining} />,
    }),
  ];
}

/** Requests that the versions of a pipeline's model have answered since the server started; null where none are counted. */
function requestsOf(activity: Activity | undefined): number | null {
  const versions = activity?.traffic?.versions ?? [];
  return versions.length > 0 ? versions.reduce((sum, { requests }) => sum + requests, 0) : null;
}

function sharesOf(model: Pipeline["model"], activity: Activity | undefined): Share[] {
  const live = activity?.traffic?.versions.filter(({ traffic_percent }) => (traffic_percent ?? 0) > 0) ?? [];
  if (live.length > 0) {
    return live.map(({ version, traffic_percent }) => ({ version, percent: traffic_percent ?? 0 }));
  }
  return [model?.champion, model?.challenger]
    .filter((served) => served !== null && served !== undefined)
    .map(({ version, traffic_percent }) => ({ version, percent: traffic_percent }));
}

/** How the traffic is split: as the server says, or as it was decided where the server does not answer. */
function TrafficCell({ pipeline, activity }: { pipeline: Pipeline; activity: Activity | undefined }) {
  const { model } = pipeline;
  if (!model?.champion) {
    return <Text color="fg.muted">–</Text>;
  }
  const shares = sharesOf(model, activity);
  const label = shares.map(({ version, percent }) => `v${version} ${percent}%`).join(" · ");
  const problem = activity?.traffic?.problem ?? null;
  const requests = requestsOf(activity);
  if (problem !== null) {
    return (
      <TwoLines
        first={
          <Tooltip content={problem}>
            <Text color={WARNING} truncate tabIndex={0}>
              <LuUnplug aria-hidden style={{ display: "inline" }} /> no answer
            </Text>
          </Tooltip>
        }
        second={<Text truncate>decided: {label}</Text>}
      />
    );
  }
  return (
    <TwoLines
      first={
        <Box flex={1} pe={2}>
          <TrafficBar size="thin" shares={shares} words={`${label}${activity ? "" : ", as decided"}`} />
        </Box>
      }
      second={
        <Text truncate fontVariantNumeric="tabular-nums">
          {label}
          {requests !== null && ` · ${formatCount(requests)} requests`}
        </Text>
      }
    />
  );
}
