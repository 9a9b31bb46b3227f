import { HStack, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import type { Schemas } from "src/api/client";
import {
  AppLink,
  type Column,
  column,
  DataTable,
  Empty,
  LinesAlert,
  numberColumn,
  QueryView,
  Segments,
} from "src/components";
import { formatCount, formatNumber, formatPercent, formatTime, intervalInWords, plural } from "src/format";
import { useQueryParam } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import { signed } from "src/pages/Models/FiguresTable";
import { PerformanceChart } from "src/pages/Models/PerformanceChart";
import { type PerformanceReport, useModel, usePerformance, type VersionPerformance } from "src/pages/Models/queries";
import { VersionBadge } from "src/pages/Models/versions";
import { gainInWords, metricHeading, metricLabel } from "src/pages/Models/words";
import { airflowTaskPath } from "src/routes";

const DAY_S = 86_400;

/** What served predictions were worth, as far as labels have come: over time, by version, and what is wrong with it. */
export function PerformanceTab({ dagId, model }: { dagId: string; model: string }) {
  const [label] = useQueryParam("label");
  const serving = useModel(dagId, model).data?.champion?.version;
  return (
    <QueryView query={usePerformance(dagId, model, label)}>
      {({ artifact, report, labels }) =>
        artifact === null || report === null ? (
          <Empty title="Live performance is not measured yet">
            Labels that come later are joined with captured predictions by a <code>PerformanceOperator</code>.
          </Empty>
        ) : (
          <Measured artifact={artifact} of={report} labels={labels} serving={serving} />
        )
      }
    </QueryView>
  );
}

interface Props {
  artifact: Schemas["ArtifactAddress"];
  of: PerformanceReport;
  labels: readonly string[];
  /** The version that serves; undefined where it is not known, or none does. */
  serving: number | undefined;
}

function Measured({ artifact, of, labels, serving }: Props) {
  const zone = useTimezone();
  const [, setLabel] = useQueryParam("label");
  const metrics = metricsOf(of);
  const [wanted, setMetric] = useQueryParam("metric", of.metric);
  const metric = metrics.includes(wanted) ? wanted : of.metric;
  const columns = useMemo(() => columnsFor(metric), [metric]);
  return (
    <Stack gap={4}>
      <HStack gap={3} wrap="wrap" fontSize="sm">
        {labels.length > 1 && (
          <Segments
            size="xs"
            label="Label"
            value={of.label}
            onChange={setLabel}
            items={labels.map((name) => [name, name])}
          />
        )}
        <Segments
          size="xs"
          label="Metric"
          value={metric}
          onChange={setMetric}
          items={metrics.map((name) => [name, metricLabel(name)])}
        />
        <Text color="fg.muted">
          label {of.label}, looked at from {formatTime(of.as_of, zone)} ·{" "}
          <AppLink to={airflowTaskPath(artifact)}>
            {artifact.dag_id}.{artifact.task_id}
          </AppLink>
        </Text>
      </HStack>
      <LinesAlert lines={of.notes} />
      {serving !== undefined && of.versions.every(({ version }) => version !== serving) && (
        <Text fontSize="sm">v{serving}, which serves, is not measured yet: these are the versions before it.</Text>
      )}
      <PerformanceChart periods={of.periods} metric={metric} />
      <DataTable
        label="Performance by version"
        name="performance"
        rows={of.versions}
        rowKey={({ version }) => String(version)}
        columns={columns}
      />
      <Text fontSize="sm" color="fg.muted">
        {completenessInWords(of)}
      </Text>
    </Stack>
  );
}

/** The metrics that some version has, the problem's first metric first. */
function metricsOf({ metric, versions }: PerformanceReport): string[] {
  const names = versions.flatMap(({ figures, estimates }) => [...Object.keys(figures), ...Object.keys(estimates)]);
  return [...new Set([metric, ...names])];
}

function columnsFor(metric: string): Column<VersionPerformance>[] {
  const label = metricHeading(metric);
  const figure = (
    key: string,
    heading: string,
    help: string,
    pick: (row: VersionPerformance) => number[] | undefined,
  ) =>
    numberColumn(key, heading, (row: VersionPerformance) => pick(row)?.[0], {
      help,
      width: 195,
      minWidth: 180,
      render: (row) => intervalInWords(pick(row)),
    });
  return [
    column("version", "Version", {
      fixed: true,
      width: 80,
      value: ({ version }) => version,
      render: ({ version }) => <VersionBadge version={version} />,
    }),
    numberColumn("rows", "Predictions", ({ rows }) => rows, { format: formatCount }),
    numberColumn("labelled", "With labels", ({ labelled, rows }) => labelled / rows, { format: formatPercent }),
    figure("measured", `${label}, measured`, "With labels; 95% interval", (row) => row.figures[metric]),
    figure("training", "At training", "On the held-out split of its training", (row) => row.baseline?.[metric]),
    numberColumn("drop", "Since training", ({ drop }: VersionPerformance) => gainOf(drop?.[metric]), {
      help: "Better or worse than on the held-out split of its training; 95% interval",
      width: 240,
      minWidth: 220,
      render: ({ drop }) => {
        const [, low, high] = drop?.[metric] ?? [];
        const interval = low === undefined || high === undefined ? "" : ` (${signed(-high)} to ${signed(-low)})`;
        return gainInWords(gainOf(drop?.[metric])) + interval;
      },
    }),
    figure("estimated", "Estimated", "From calibrated probabilities, without labels", (row) => row.estimates[metric]),
  ];
}

/** What was gained since the training: the API says by how much a figure is worse. */
const gainOf = (drop: readonly number[] | undefined): number | null => (drop?.[0] === undefined ? null : -drop[0]);

/** `Predictions with labels, by age: under 1 day 43%, …`, and how long labels take. */
function completenessInWords({ ages, delay_s, labels }: PerformanceReport): string {
  const [half, most] = delay_s ?? [];
  const days = (seconds: number) => plural(Math.round((seconds / DAY_S) * 10) / 10, "day");
  const shares = ages.map(({ from_s, to_s, rows, labelled }) => {
    const age = to_s === null ? `over ${days(from_s)}` : `under ${days(to_s)}`;
    return `${age} ${formatPercent(labelled / rows)}`;
  });
  const delays =
    half === undefined || most === undefined
      ? ""
      : ` Half of the labels that came did within ${hours(half)}, 95% within ${hours(most)}.`;
  const others = Object.entries(labels).filter(([name, count]) => count > 0 && name !== "given" && name !== "joined");
  const counts = others.map(([name, count]) => `${formatCount(count)} ${name}`).join(", ");
  return `Predictions with labels, by age: ${shares.join(", ")}.${delays}${counts && ` Labels: ${counts}.`}`;
}

const hours = (seconds: number): string =>
  seconds < 2 * DAY_S ? `${formatNumber(seconds / 3600, 3)} h` : `${formatNumber(seconds / DAY_S, 3)} days`;
