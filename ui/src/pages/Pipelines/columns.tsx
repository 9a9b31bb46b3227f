import type { Activity, Pipeline } from "src/api/pipelines";
import type { Column } from "src/components/table";
import { formatDuration } from "src/format";
import { ModelCell } from "src/pages/Pipelines/ModelCell";
import { NameCell } from "src/pages/Pipelines/NameCell";
import { RequestsCell, requestsOf } from "src/pages/Pipelines/RequestsCell";
import { RetrainedCell } from "src/pages/Pipelines/RetrainedCell";
import { RunCell } from "src/pages/Pipelines/RunCell";
import { SkewCell } from "src/pages/Pipelines/SkewCell";
import { TrafficCell } from "src/pages/Pipelines/TrafficCell";

/** The columns of the list; what goes on with each is looked up by its DAG's id, and may not be there yet. */
export function pipelineColumns(activity: Record<string, Activity | undefined>): Column<Pipeline>[] {
  return [
    {
      key: "pipeline",
      label: "Pipeline",
      fixed: true,
      width: 190,
      minWidth: 170,
      value: (row) => row.display_name,
      render: (row) => <NameCell pipeline={row} />,
    },
    {
      key: "run",
      label: "Last run",
      width: 210,
      minWidth: 200,
      descendingFirst: true,
      help: "State, when it ended or started, and its stages",
      value: (row) => row.last_run?.run_after,
      render: (row) => <RunCell dagId={row.dag_id} run={row.last_run} isPaused={row.is_paused} />,
    },
    {
      key: "duration",
      label: "Took",
      width: 90,
      align: "end",
      optional: true,
      descendingFirst: true,
      value: (row) => row.last_run?.duration_s,
      render: (row) => formatDuration(row.last_run?.duration_s),
    },
    {
      key: "champion",
      label: "Champion",
      width: 190,
      minWidth: 185,
      descendingFirst: true,
      help: "The serving version, since when, and the metric that compares versions; sorted by the difference to the previous version",
      value: (row) => row.model?.metric?.difference ?? (row.model?.metric ? 0 : null),
      render: (row) => <ModelCell dagId={row.dag_id} model={row.model} />,
    },
    {
      key: "traffic",
      label: "Traffic",
      width: 130,
      descendingFirst: true,
      help: "Share of each version, as the model server reports it; sorted by the challenger's",
      value: (row) => row.model?.challenger?.traffic_percent,
      render: (row) => <TrafficCell pipeline={row} activity={activity[row.dag_id]} />,
    },
    {
      key: "requests",
      label: "Requests",
      width: 125,
      descendingFirst: true,
      help: "Requests that the model server has counted since it started",
      value: (row) => requestsOf(activity[row.dag_id]),
      render: (row) => <RequestsCell serves={Boolean(row.model?.champion)} activity={activity[row.dag_id]} />,
    },
    {
      key: "skew",
      label: "Skew",
      width: 210,
      minWidth: 200,
      descendingFirst: true,
      help: "The last comparison of requests with the training data; sorted by the number of features that drifted",
      value: (row) => row.skew?.drifted.length,
      render: (row) => <SkewCell pipeline={row} activity={activity[row.dag_id]} />,
    },
    {
      key: "retrained",
      label: "Last trained",
      width: 170,
      minWidth: 120,
      descendingFirst: true,
      value: (row) => row.retraining?.at,
      render: (row) => <RetrainedCell dagId={row.dag_id} retraining={row.retraining} />,
    },
  ];
}
