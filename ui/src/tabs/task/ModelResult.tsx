import { Box, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { api, type Schemas } from "src/api/client";
import { LoadingBox, Numbers, QueryView } from "src/components";
import { formatDuration, formatNumber, formatPercent } from "src/format";
import { metricHeading } from "src/pages/Models/words";
import { CurveGrid } from "src/pages/Runs/CurveGrid";
import type { Curve } from "src/pages/Runs/curves";
import { pathOf } from "src/routes";
import { RowsTable } from "src/tabs/task/parts";
import { numberIn } from "src/tabs/task/properties";

/** A training that has ended: its last figures, ranks, throughput and learning curves. */
export function ModelResult({ artifact }: { artifact: Schemas["ArtifactEntry"] }) {
  const { metrics, properties } = artifact;
  const figures = Object.entries(metrics).filter(([name]) => /^(eval|train)_/.test(name));
  return (
    <>
      <Numbers
        of={[
          ...figures.map(([name, value]) => [metricHeading(name), formatNumber(value)] as const),
          ["ranks", formatNumber(numberIn(properties, "ranks"))],
          ["ranks equal", properties.synchronized === true ? "yes" : "not shown"],
          ["examples/s", formatNumber(metrics.examples_per_second, 3)],
          ["scaling efficiency", formatPercent(metrics.scaling_efficiency)],
          ["trained in", formatDuration(metrics.seconds)],
        ]}
      />
      {artifact.state === "present" && <Curves artifact={artifact} />}
      <RowsTable rows={artifact.rows} />
    </>
  );
}

function Curves({ artifact }: { artifact: Schemas["ArtifactEntry"] }) {
  const query = api.useQuery("get", "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/epochs", {
    params: { path: pathOf(artifact) },
  });
  return (
    <QueryView query={query} loading={<LoadingBox />}>
      {(told) => (
        <Box>
          {told.resumed_after_epoch ? (
            <Text fontSize="sm" color="fg.muted" mb={2}>
              Resumed after epoch {told.resumed_after_epoch}.
            </Text>
          ) : null}
          <EpochCurves epochs={told.epochs} />
        </Box>
      )}
    </QueryView>
  );
}

const RUNS = [{ run_id: "task", label: "this training", start_time: 0 }];

function EpochCurves({ epochs }: { epochs: Schemas["Epochs"]["epochs"] }) {
  const curves = useMemo(() => {
    const names = new Set(epochs.flatMap((epoch) => Object.keys(epoch)));
    names.delete("seconds");
    let elapsed = 0;
    const times = epochs.map(({ seconds }) => {
      elapsed += (seconds ?? 0) * 1000;
      return elapsed;
    });
    return [...names].map(
      (metric): Curve => ({
        run_id: "task",
        metric,
        points: epochs.length,
        steps: epochs.map((_, index) => index + 1),
        values: epochs.map((epoch) => epoch[metric] ?? null),
        times,
      }),
    );
  }, [epochs]);
  return epochs.length > 1 ? <CurveGrid curves={curves} runs={RUNS} /> : null;
}
