import { Box, Skeleton, Text } from "@chakra-ui/react";
import { LuUnplug } from "react-icons/lu";
import type { Activity, Pipeline } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { WARNING } from "src/components/colors";
import { Sparkline } from "src/components/Sparkline";
import { StateBadge } from "src/components/StateBadge";
import { Time } from "src/components/Time";
import { Tooltip } from "src/components/Tooltip";
import { TwoLines } from "src/components/TwoLines";
import { type Column, numberColumn } from "src/components/table";
import { formatCount, formatDuration } from "src/format";
import { type Share, TrafficBar } from "src/pages/Models/TrafficBar";
import { ModelCell } from "src/pages/Pipelines/ModelCell";
import { NameCell } from "src/pages/Pipelines/NameCell";
import { RetrainedCell } from "src/pages/Pipelines/RetrainedCell";
import { RunCell } from "src/pages/Pipelines/RunCell";
import { CAUSE_LABELS } from "src/pages/Skew/words";
import { skewPath } from "src/routes";

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
    numberColumn("duration", "Took", ({ last_run }) => last_run?.duration_s, {
      width: 90,
      optional: true,
      format: formatDuration,
    }),
    {
      key: "champion",
      label: "Champion",
      width: 190,
      minWidth: 185,
      descendingFirst: true,
      help: "The serving version, since when, and the metric that compares versions; sorted by the difference to the previous version",
      value: (row) => row.model?.metric?.gain?.difference ?? (row.model?.metric ? 0 : null),
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

/** Requests that the versions of a pipeline's model have answered since the server started; null where none are counted. */
function requestsOf(activity: Activity | undefined): number | null {
  const versions = activity?.traffic?.versions ?? [];
  return versions.length > 0 ? versions.reduce((sum, { requests }) => sum + requests, 0) : null;
}

/** How many requests the model server has counted. */
function RequestsCell({ serves, activity }: { serves: boolean; activity: Activity | undefined }) {
  if (serves && activity === undefined) {
    return <Skeleton height="24px" width="96px" role="status" aria-label="Loading from the server" />;
  }
  const requests = serves ? requestsOf(activity) : null;
  return (
    <Text color={requests === null ? "fg.muted" : undefined}>{requests === null ? "–" : formatCount(requests)}</Text>
  );
}

const PALETTES: Record<string, string> = { drift: "warning", pipeline_fault: "failed" };

/** The monitoring's last word, the feature that matters most, and how many drifted at the checks before. */
function SkewCell({ pipeline, activity }: { pipeline: Pipeline; activity: Activity | undefined }) {
  const { dag_id, skew, monitors, model } = pipeline;
  if (skew === null) {
    const why = model === null ? "–" : monitors.length > 0 ? "not checked yet" : "not monitored";
    return <Text color="fg.muted">{why}</Text>;
  }
  const counts = activity?.skew.map(({ drifted }) => drifted) ?? [];
  const [feature] = skew.verdict === "insufficient" ? [] : skew.drifted;
  const cause = CAUSE_LABELS[skew.causes[feature ?? ""] ?? ""];
  return (
    <TwoLines
      first={
        <>
          <AppLink to={skewPath(dag_id, { artifact: skew })} aria-label={`Skew: ${skew.verdict}`}>
            <StateBadge state={skew.verdict} />
          </AppLink>
          <Text truncate>
            <Time at={skew.at} />
          </Text>
        </>
      }
      second={
        <>
          {counts.length > 1 && (
            <Sparkline
              values={counts}
              width={64}
              height={18}
              palette={PALETTES[skew.verdict] ?? "success"}
              label={`Features that drifted in the last ${counts.length} checks`}
            />
          )}
          {feature !== undefined && (
            <Text truncate title={skew.drifted.join(", ")}>
              <AppLink to={skewPath(dag_id, { feature })} color="fg.muted">
                {feature}
              </AppLink>
              {cause && `: ${cause}`}
              {skew.drifted.length > 1 && `, and ${skew.drifted.length - 1} more`}
            </Text>
          )}
        </>
      }
    />
  );
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
  return (
    <TwoLines
      first={
        <Box flex={1} pe={2}>
          <TrafficBar size="thin" shares={shares} words={`${label}${activity && !problem ? "" : ", as decided"}`} />
        </Box>
      }
      second={
        <>
          <Text truncate fontVariantNumeric="tabular-nums">
            {label}
          </Text>
          {activity === undefined && (
            <Skeleton height="8px" width="20px" role="status" aria-label="Loading from the server" />
          )}
          {problem !== null && (
            <Tooltip content={`${problem}. The shares shown are the decided ones.`}>
              <Text as="span" color={WARNING} tabIndex={0} role="img" aria-label={problem} flexShrink={0}>
                <LuUnplug />
              </Text>
            </Tooltip>
          )}
        </>
      }
    />
  );
}
