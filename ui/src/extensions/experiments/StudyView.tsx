import { Box, Button, Grid, Stack, Text } from "@chakra-ui/react";
import {
  formatNumber,
  formatPercent,
  ParallelCoordinates,
  Part,
  QueryView,
  RunScatter,
  Segments,
  useQuery,
  useQueryParam,
} from "airflow-hops";
import { Fragment, useMemo } from "react";
import { LuArrowLeft } from "react-icons/lu";
import { BestSoFar } from "src/extensions/experiments/BestSoFar";
import { IntermediateValues } from "src/extensions/experiments/IntermediateValues";
import { ParetoFront } from "src/extensions/experiments/ParetoFront";
import { useStudy } from "src/extensions/experiments/queries";
import { StudyHeader } from "src/extensions/experiments/StudyHeader";
import { TrialTable } from "src/extensions/experiments/TrialTable";
import { bestOf, namesOfStudy, type StudyDetail, type StudyRef, trialsOf } from "src/extensions/experiments/trials";

/** Trials beyond which the best are drawn. */
const MOST_DRAWN = 500;

const CHARTS = [
  ["parallel", "Parallel coordinates"],
  ["slice", "Slices"],
] as const;

/** One study: its progress, charts of its trials, and all of them in a table. */
export function StudyView({ dagId, study }: { dagId: string; study: StudyRef }) {
  const query = useStudy(dagId, study);
  const [, change] = useQuery();
  return (
    <Stack gap={4}>
      <Button
        size="xs"
        variant="ghost"
        alignSelf="flex-start"
        onClick={() => change({ study: null, brush: null, axis: null, state: null, trial: null }, { push: true })}
      >
        <LuArrowLeft />
        All studies
      </Button>
      <QueryView query={query}>{(found) => <Trials dagId={dagId} study={found} onStop={query.refetch} />}</QueryView>
    </Stack>
  );
}

function Trials({ dagId, study, onStop }: { dagId: string; study: StudyDetail; onStop: () => void }) {
  const [, change] = useQuery();
  const [chart, setChart] = useQueryParam("chart", "parallel");
  const trials = useMemo(() => trialsOf(study), [study]);
  const names = useMemo(() => namesOfStudy(study), [study]);
  const metric = Math.max(study.metrics.indexOf(study.choose ?? ""), 0);
  const direction = study.directions[metric];
  const drawn = useMemo(() => bestOf(trials, metric, direction, MOST_DRAWN), [trials, metric, direction]);
  const lower = useMemo(() => {
    const minimized = new Set(study.metrics.filter((_, place) => study.directions[place] === "minimize"));
    return (name: string) => minimized.has(name);
  }, [study.metrics, study.directions]);
  const several = study.metrics.length > 1;
  const complete = study.counts.complete ?? 0;
  const open = (id: string) => {
    const run = trials.find(({ run_id }) => run_id === id)?.training ?? null;
    if (run !== null) {
      change({ run }, { push: true });
    }
  };
  return (
    <>
      <StudyHeader dagId={dagId} study={study} onStop={onStop} />
      <Grid templateColumns={`repeat(auto-fit, minmax(min(${several ? 420 : 340}px, 100%), 1fr))`} gap={3}>
        <BestSoFar trials={trials} metric={metric} name={study.metrics[metric] ?? ""} direction={direction} />
        {several && <ParetoFront study={study} trials={trials} />}
        <IntermediateValues dagId={dagId} study={study} />
        <Importance importance={study.importance} metric={study.metrics[0]} />
      </Grid>
      {drawn.length > 1 && (
        <Stack gap={2}>
          <Segments label="Chart" value={chart} onChange={setChart} items={CHARTS} alignSelf="flex-start" />
          {complete > MOST_DRAWN && (
            <Text fontSize="sm" color="fg.muted">
              The best {MOST_DRAWN} of {formatNumber(complete)} complete trials.
            </Text>
          )}
          {chart === "slice" ? (
            <RunScatter runs={drawn} names={names} noun="trial" isLower={lower} onOpen={open} />
          ) : (
            <ParallelCoordinates runs={drawn} names={names} noun="trial" isLower={lower} />
          )}
        </Stack>
      )}
      <TrialTable dagId={dagId} study={study} trials={trials} names={names} onStop={onStop} />
    </>
  );
}

const MOST = 12;

/** Share of each parameter in the variance of the first metric. */
function Importance({ importance, metric }: { importance: Record<string, number | null>; metric: string | undefined }) {
  const ordered = Object.entries(importance).sort(([, one], [, other]) => (other ?? 0) - (one ?? 0));
  const left = ordered.length - MOST;
  return (
    <Part boxed title="Importance of parameters" note={`Share in the variance of ${metric} (fANOVA)`}>
      {ordered.length === 0 ? (
        <Text fontSize="sm" color="fg.muted" py={4}>
          Not known: too few trials are complete, or nothing varies.
        </Text>
      ) : (
        <Grid
          templateColumns="minmax(60px, max-content) 1fr max-content"
          gap={2}
          py={2}
          fontSize="sm"
          alignItems="center"
        >
          {ordered.slice(0, MOST).map(([name, share]) => (
            <Fragment key={name}>
              <Text overflowWrap="anywhere">{name}</Text>
              <Box bg="bg.muted" borderRadius="sm" h={3} aria-hidden>
                <Box bg="brand.solid" borderRadius="sm" h="full" width={`${Math.min(100 * (share ?? 0), 100)}%`} />
              </Box>
              <Text fontVariantNumeric="tabular-nums" textAlign="end">
                {formatPercent(share)}
              </Text>
            </Fragment>
          ))}
        </Grid>
      )}
      {left > 0 && (
        <Text fontSize="xs" color="fg.muted">
          {left} more matter less
        </Text>
      )}
    </Part>
  );
}
