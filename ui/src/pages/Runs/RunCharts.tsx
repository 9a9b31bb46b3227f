import { Box, HStack, Link, Stack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { Empty, ErrorAlert, LoadingBox } from "src/components";
import { useChartTheme } from "src/components/chart";
import { useQuery } from "src/hooks/useQueryState";
import { CodeDifferences } from "src/pages/Runs/CodeDifferences";
import type { CurveRun } from "src/pages/Runs/CurveChart";
import { CurveGrid } from "src/pages/Runs/CurveGrid";
import { Differences } from "src/pages/Runs/Differences";
import { legendLabels, type Names, type Run } from "src/pages/Runs/figures";
import { useCurves } from "src/pages/Runs/useCurves";

const MOST_CURVES = 20;
const FIRST = 5;

/** Runs beside each other: those that are selected, or else the curves of the first of the table. */
export function RunCharts(props: {
  dagId: string;
  view: string;
  chosen: readonly Run[];
  runs: readonly Run[];
  names: Names;
}) {
  const { dagId, view, chosen, runs, names } = props;
  if (view !== "differences") {
    const selected = chosen.length > 0;
    return <RunCurves dagId={dagId} runs={selected ? chosen : runs} selected={selected} />;
  }
  const [first, second, ...more] = chosen;
  return first === undefined || second === undefined ? (
    <Empty title="Select two or more runs">Tick them in the table below to see where they differ.</Empty>
  ) : (
    <Stack gap={5}>
      <Differences dagId={dagId} runs={chosen} names={names} />
      <CodeDifferences dagId={dagId} runs={[first, second, ...more]} />
      <RunCurves dagId={dagId} runs={chosen} selected />
    </Stack>
  );
}

function RunCurves({ dagId, runs, selected }: { dagId: string; runs: readonly Run[]; selected: boolean }) {
  const shown = useMemo(() => runs.slice(0, selected ? MOST_CURVES : FIRST), [runs, selected]);
  const { curves, isPending, error } = useCurves(dagId, shown);
  const drawn = useMemo<CurveRun[]>(() => {
    const labels = legendLabels(shown);
    return shown.map(({ run_id, start_time }, place) => ({ run_id, start_time, label: labels[place] ?? run_id }));
  }, [shown]);
  if (error !== null) {
    return <ErrorAlert error={error} />;
  }
  if (isPending && curves.length === 0) {
    return <LoadingBox />;
  }
  const left = runs.length - shown.length;
  return (
    <Box>
      <CurveGrid
        curves={curves}
        runs={drawn}
        legend={
          <HStack gap={4} mb={2} wrap="wrap" fontSize="xs">
            {drawn.map((run, place) => (
              <LegendEntry key={run.run_id} run={run} place={place} />
            ))}
            {left > 0 && (
              <Text color="fg.muted">
                {selected
                  ? `${left} more selected runs are not drawn`
                  : "the first runs of the table; select runs to choose others"}
              </Text>
            )}
          </HStack>
        }
      />
    </Box>
  );
}

function LegendEntry({ run, place }: { run: CurveRun; place: number }) {
  const theme = useChartTheme();
  const [, change] = useQuery();
  return (
    <Link as="button" gap={1.5} color="fg" onClick={() => change({ run: run.run_id }, { push: true })}>
      <Box boxSize={2.5} borderRadius="sm" bg={theme.series[place % theme.series.length]} />
      {run.label}
    </Link>
  );
}
