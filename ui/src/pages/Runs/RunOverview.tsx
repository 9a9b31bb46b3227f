import { Box, DataList, Grid, HStack, Link, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { Schemas } from "src/api/client";
import { AppLink, Breakable, CopyButton, Numbers, Part, PlainTable, StateBadge, Time, WARNING } from "src/components";
import { formatDuration, formatNumber } from "src/format";
import { isLoss, metricHeading } from "src/pages/Models/words";
import { durationOf, isLive, labelOf } from "src/pages/Runs/figures";
import { RankTimes } from "src/pages/Runs/RankTimes";
import { TensorBoardLink } from "src/pages/Runs/TensorBoardLink";
import { airflowRunPath, airflowTaskPath, lineagePath, modelsPath, runsPath } from "src/routes";

type Detail = Schemas["TrainingRunDetail"];

/** What a run was given, what came of it, where it leads. */
export function RunOverview({ dagId, run }: { dagId: string; run: Detail }) {
  return (
    <Stack gap={4}>
      <Facts dagId={dagId} run={run} />
      <Grid templateColumns={{ base: "1fr", lg: "3fr 2fr" }} gap={5}>
        <Figures figures={run.figures} />
        <Stack gap={4} minW={0}>
          <Part title="Parameters">
            <Pairs pairs={Object.entries(run.params)} none="none logged" />
          </Part>
          {run.datasets.length > 0 && (
            <Part title="Data">
              <Pairs
                pairs={run.datasets.map((each) => [
                  each.context ?? each.name,
                  `${each.name}${each.rows === null ? "" : `, ${formatNumber(each.rows)} rows`}`,
                ])}
              />
            </Part>
          )}
          {run.slowest.length > 0 && <SlowestRanks epochs={run.slowest} />}
          {run.children.length > 0 && <Children dagId={dagId} runs={run.children} />}
        </Stack>
      </Grid>
      <Part title="Tags">
        <Pairs pairs={Object.entries(run.tags)} none="none" />
      </Part>
    </Stack>
  );
}

function Facts({ dagId, run }: { dagId: string; run: Detail }) {
  const task =
    run.dag_run_id && run.task_id
      ? {
          dag_id: dagId,
          run_id: run.dag_run_id,
          task_id: run.task_id,
          map_index: run.map_index,
          iteration: run.iteration,
        }
      : null;
  const facts: [string, ReactNode][] = [
    ["Started", <Time key="at" at={run.start_time} />],
    ["Duration", isLive(run) ? "runs" : formatDuration(durationOf(run))],
    ["Ranks", run.params.np ?? "–"],
    [
      "Throughput",
      run.metrics.examples_per_second ? `${formatNumber(run.metrics.examples_per_second, 3)} examples/s` : "–",
    ],
    ["Tries", run.tries.length],
    ["CPU", run.cost.core_s ? formatDuration(run.cost.core_s) : "–"],
    ...(run.cost.gpu_s ? [["GPU", formatDuration(run.cost.gpu_s)] as [string, ReactNode]] : []),
    ["Id", <Id key="id" id={run.run_id} />],
    ...(run.mlflow_run_id
      ? [["MLflow's id", <Id key="mlflow" id={run.mlflow_run_id} href={run.mlflow_url} />] as [string, ReactNode]]
      : []),
  ];
  return (
    <>
      <Numbers of={facts} fontSize="sm" />
      <HStack gap={4} mt={3} wrap="wrap" fontSize="sm">
        {run.versions.map(({ name, version }) => (
          <AppLink key={`${name} ${version}`} to={modelsPath(dagId, { model: name, version })} fontWeight="semibold">
            Model {name} v{version}
          </AppLink>
        ))}
        {task && run.dag_run_state !== null && (
          <>
            <AppLink to={airflowRunPath(dagId, task.run_id)}>DAG run</AppLink>
            <AppLink to={airflowTaskPath(task)}>Task {task.task_id}</AppLink>
            {run.tags["hops.model"] && (
              <AppLink to={lineagePath(dagId, { artifact: { ...task, kind: "model" } })}>Lineage</AppLink>
            )}
            <TensorBoardLink task={task} />
          </>
        )}
        {run.parent && <AppLink to={runsPath(dagId, { run: run.parent })}>Parent run</AppLink>}
      </HStack>
    </>
  );
}

const Id = ({ id, href }: { id: string; href?: string | null }) => (
  <Text fontFamily="mono" fontSize="xs" overflowWrap="anywhere">
    {href ? <Link href={href}>{id}</Link> : id} <CopyButton text={id} label="Copy the id" />
  </Text>
);

function Figures({ figures }: { figures: Detail["figures"] }) {
  const entries = Object.entries(figures).sort(
    ([a], [b]) => Number(a.includes(".")) - Number(b.includes(".")) || a.localeCompare(b),
  );
  return (
    <Part title="Metrics">
      {entries.length === 0 ? (
        <Text color="fg.muted">None yet.</Text>
      ) : (
        <PlainTable
          label="Metrics"
          width="auto"
          dense
          rows={entries.map(([name, { last, min, max, count }]) => ({
            name,
            last,
            best: count > 1 ? (isLoss(name) ? min : max) : null,
          }))}
          rowKey={({ name }) => name}
          columns={[
            { label: "Metric", cell: ({ name }) => <Breakable name={metricHeading(name)} /> },
            { label: "Last", end: true, cell: ({ last }) => formatNumber(last.value, 5) },
            {
              label: "Best",
              end: true,
              help: "the smallest of losses, else the largest",
              cell: ({ best }) => best && formatNumber(best.value, 5),
            },
            { label: "at step", end: true, cell: ({ best, last }) => best && `${best.step} of ${last.step}` },
          ]}
        />
      )}
    </Part>
  );
}

const SHOWN_EPOCHS = 10;
const WAITED_FOR = { rows: "rows", computing: "computing", exchange: "the exchange" };

/** Which rank the others waited for, in the last epochs. */
function SlowestRanks({ epochs }: { epochs: Detail["slowest"] }) {
  const detailed = epochs.filter((each) => each.ranks.length > 0);
  return (
    <Part title="Slowest rank">
      <PlainTable
        label="Slowest rank"
        width="auto"
        rows={epochs.slice(-SHOWN_EPOCHS)}
        rowKey={({ epoch }) => epoch}
        rowTitle={({ computing, rows, exchange }) =>
          `${formatNumber(computing, 3)} s computing, ${formatNumber(rows, 3)} s waiting for rows, ${formatNumber(exchange, 3)} s exchanging`
        }
        columns={[
          { label: "Epoch", end: true, cell: ({ epoch }) => epoch },
          { label: "Rank", end: true, cell: ({ rank }) => rank },
          {
            label: "Mostly",
            cell: ({ waits_for }) => WAITED_FOR[waits_for as keyof typeof WAITED_FOR] ?? waits_for,
          },
          {
            label: "Of the others",
            end: true,
            help: "its time without the exchange, by the other ranks' median",
            cell: ({ times }) => (
              <Text color={times >= 1.5 ? WARNING : undefined}>{`× ${formatNumber(times, 3)}`}</Text>
            ),
          },
        ]}
      />
      {detailed.length > 0 && (
        <Box mt={3}>
          <RankTimes epochs={detailed} />
        </Box>
      )}
    </Part>
  );
}

function Children({ dagId, runs }: { dagId: string; runs: Detail["children"] }) {
  return (
    <Part title={`Nested runs (${runs.length})`}>
      {runs.map((run) => (
        <HStack key={run.run_id} fontSize="sm" py={0.5}>
          <AppLink to={runsPath(dagId, { run: run.run_id })} truncate>
            {labelOf(run)}
          </AppLink>
          <StateBadge state={run.status} marginInlineStart="auto" />
        </HStack>
      ))}
    </Part>
  );
}

function Pairs({ pairs, none }: { pairs: readonly [string, string][]; none?: string }) {
  if (pairs.length === 0) {
    return <Text color="fg.muted">{none}</Text>;
  }
  return (
    <DataList.Root orientation="horizontal" size="sm" gap={1}>
      {pairs.map(([name, value]) => (
        <DataList.Item key={`${name} ${value}`} alignItems="flex-start">
          <DataList.ItemLabel minW="150px" maxW="220px" wordBreak="break-word">
            {name}
          </DataList.ItemLabel>
          <DataList.ItemValue wordBreak="break-word">{value}</DataList.ItemValue>
        </DataList.Item>
      ))}
    </DataList.Root>
  );
}
