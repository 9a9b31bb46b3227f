import { Box, Heading, HStack, Text } from "@chakra-ui/react";
import { keepPreviousData } from "@tanstack/react-query";
import { useMemo } from "react";
import { api } from "src/api/client";
import { useSkewReport } from "src/api/skew";
import { Choice, ErrorAlert } from "src/components";
import { Chart, useChartTheme } from "src/components/chart";
import { useQueryParam } from "src/hooks/useQueryState";
import { useTimezone } from "src/host";
import { chartOption, LIMITS } from "src/pages/Skew/chartOption";
import type { Measured } from "src/pages/Skew/chartShown";
import { type FeatureRow, knowsDataTime, type TimeAxis, type Timeline } from "src/pages/Skew/timeline";
import { toldOfStop } from "src/pages/Skew/words";
import type { ArtifactRef } from "src/routes";

const MEASURED: { value: Measured; label: string }[] = [
  { value: "score", label: "Distance (of rows)" },
  { value: "p", label: "p-value" },
  { value: "missing", label: "Missing values" },
];

interface Props {
  dagId: string;
  timeline: Timeline;
  row: FeatureRow;
  chosen: ArtifactRef;
  /** How many comparisons are shown. */
  limit: number;
  onChoose: (index: number) => void;
}

/** One feature over all comparisons, with what was decided and which versions came. A click on a point chooses it. */
export function FeatureChart({ dagId, timeline, row, chosen, limit, onChoose }: Props) {
  const { entries: checks, failures, source } = timeline;
  const events = useMemo(
    () =>
      Object.entries(timeline.events).flatMap(([model, decisions]) => decisions.map((each) => ({ ...each, model }))),
    [timeline.events],
  );
  const axis: TimeAxis = knowsDataTime(checks) ? "data" : "wall";
  const [measured, setMeasured] = useQueryParam("measure", "score");
  const zone = useTimezone();
  const theme = useChartTheme();
  const history = api.useQuery(
    "get",
    "/api/dags/{dag_id}/skew/feature",
    {
      params: {
        path: { dag_id: dagId },
        query: { feature: row.name, source: source && `${source.dag_id}/${source.task_id}`, limit },
      },
    },
    { placeholderData: keepPreviousData, staleTime: 60_000 },
  );
  const report = useSkewReport(chosen, { features: false });
  const alpha = report.data?.alpha ?? null;
  const shown = MEASURED.find(({ value }) => value === measured)?.value ?? "score";
  const drifted = row.driftedCount ? `drifted in ${row.driftedCount} of ${checks.length}` : "has not drifted";
  // While another feature's answer is awaited, the last one stays: its points are not of this one.
  const said = history.isPlaceholderData ? undefined : history.data?.entries;
  const option = useMemo(() => {
    const byFingerprint = new Map((said ?? []).map((point) => [point.fingerprint, point]));
    const points = checks.map(({ fingerprint }) => byFingerprint.get(fingerprint));
    return chartOption({
      row,
      checks,
      points,
      events,
      failures,
      measured: shown,
      axis,
      alpha,
      chosen,
      zone,
      theme,
    });
  }, [row, checks, events, failures, shown, axis, alpha, chosen, zone, theme, said]);
  return (
    <Box>
      <HStack gap={3} mb={1} wrap="wrap">
        <Heading as="h2" size="md" truncate maxW="md" title={row.name}>
          {row.name}
        </Heading>
        <Text color="fg.muted" fontSize="sm">
          {drifted}
        </Text>
        <Box marginInlineStart={{ md: "auto" }}>
          <Choice quiet width="40" label="Measure" value={shown} onChange={setMeasured} values={MEASURED} />
        </Box>
      </HStack>
      <ErrorAlert error={history.error} />
      <Chart
        option={option}
        height="340px"
        label={`${row.name} over ${checks.length} comparisons: ${drifted}. The table below has the same figures.`}
        handlers={{
          click: (event) => {
            const index = indexOf(event);
            if (index !== null) {
              onChoose(index);
            }
          },
        }}
      />
      <Text fontSize="xs" color="fg.muted">
        Dashed: {LIMITS[shown]}. Orange points: drifted. Hollow points: too few rows. ▲ retraining requested, ● refused,
        ◆ a version started or stopped serving{failures.length > 0 && ", ✕ a monitoring task failed"}
        {checks.some(({ decision }) => decision && toldOfStop(decision)) &&
          ", pin: people were told that requests stopped"}
        . Bars: current rows.
      </Text>
    </Box>
  );
}

function indexOf(event: unknown): number | null {
  const { value } = event as { value?: unknown };
  const index = Array.isArray(value) ? value[2] : undefined;
  return typeof index === "number" ? index : null;
}
