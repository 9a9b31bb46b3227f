import { Box, HStack, Text } from "@chakra-ui/react";
import { LuCornerDownRight } from "react-icons/lu";
import { AppLink, type Column, column, numberColumn, StateBadge, Time } from "src/components";
import { useChartTheme } from "src/components/chart";
import { formatDuration } from "src/format";
import { metricHeading } from "src/pages/Models/words";
import { durationOf, isLive, labelOf, type Names, type Run, shortened, VERDICT } from "src/pages/Runs/figures";
import { airflowRunPath, modelsPath } from "src/routes";

const MOST_PARAMS = 2;

/** The columns of a table of runs; the runs of `colored` bear the colours of their curves. */
export function columnsOf(dagId: string, names: Names, colored: readonly string[]): Column<Run>[] {
  return [
    column("run_name", "Run", {
      fixed: true,
      width: 240,
      minWidth: 140,
      value: (run) => labelOf(run, names.severalTasks),
      render: (run) => <Name run={run} label={labelOf(run, names.severalTasks)} place={colored.indexOf(run.run_id)} />,
    }),
    column("status", "Status", {
      width: 102,
      value: (run) => run.status,
      render: (run) => <StateBadge state={run.status} />,
    }),
    column("start_time", "Started", {
      width: 118,
      descendingFirst: true,
      value: (run) => run.start_time,
      render: (run) => <Time at={run.start_time} />,
    }),
    numberColumn<Run>("duration", "Duration", durationOf, {
      width: 94,
      render: (run) => (isLive(run) ? "runs" : formatDuration(durationOf(run))),
    }),
    column("versions", "Model version", {
      width: 120,
      minWidth: 96,
      render: (run) => <Versions dagId={dagId} run={run} />,
    }),
    column(`metrics.${VERDICT}`, "Verdict", {
      width: 118,
      minWidth: 100,
      descendingFirst: true,
      help: "Whether its evaluation blessed the model: allowed it to be deployed",
      value: (run) => run.metrics[VERDICT],
      render: ({ metrics: { [VERDICT]: blessed } }) =>
        blessed == null ? "–" : <StateBadge state={blessed ? "blessed" : "not blessed"} size="sm" />,
    }),
    ...names.metrics.map((name) =>
      numberColumn(`metrics.${name}`, metricHeading(name), (run: Run) => run.metrics[name], {
        width: widthFor(metricHeading(name)),
        minWidth: NARROW,
        help: `Metric ${name}, its last value`,
        optional: !names.headline.includes(name),
      }),
    ),
    ...names.params.map(
      (name): Column<Run> => ({
        key: `params.${name}`,
        label: name,
        width: widthFor(name),
        minWidth: NARROW,
        help: `Parameter ${name}`,
        optional: !names.varying.slice(0, MOST_PARAMS).includes(name),
        value: (run) => run.params[name],
        render: (run) => <Text title={run.params[name]}>{shortened(run.params[name] ?? "–")}</Text>,
      }),
    ),
    column("dag_run", "DAG run", {
      width: 260,
      optional: true,
      render: (run) => run.dag_run_id && <DagRun dagId={dagId} run={run} id={run.dag_run_id} />,
    }),
    { key: "task", label: "Task", optional: true, render: (run) => run.task_id ?? "–" },
    { key: "run_id", label: "Id", width: 280, optional: true, render: (run) => run.run_id },
  ];
}

const NARROW = 80;
const widthFor = (name: string): number => Math.min(Math.max(name.length * 8 + 36, 84), 240);

function Name({ run, label, place }: { run: Run; label: string; place: number }) {
  const theme = useChartTheme();
  return (
    <HStack gap={2} minW={0} title={run.name}>
      {place >= 0 && (
        <Box boxSize={2.5} borderRadius="sm" flexShrink={0} bg={theme.series[place % theme.series.length]} />
      )}
      {run.parent !== null && <LuCornerDownRight aria-label="nested in another run" />}
      <Text truncate fontWeight="medium">
        {label}
      </Text>
    </HStack>
  );
}

function Versions({ dagId, run }: { dagId: string; run: Run }) {
  return (
    <HStack gap={2}>
      {run.versions.length === 0 && "–"}
      {run.versions.map(({ name, version }) => (
        <AppLink key={`${name} ${version}`} to={modelsPath(dagId, { model: name, version })}>
          {name} v{version}
        </AppLink>
      ))}
    </HStack>
  );
}

function DagRun({ dagId, run, id }: { dagId: string; run: Run; id: string }) {
  if (run.dag_run_state === null) {
    return <Text color="fg.muted">{id}</Text>;
  }
  return <AppLink to={airflowRunPath(dagId, id)}>{id}</AppLink>;
}
