import { Box, Grid, HStack, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { useQueries } from "@tanstack/react-query";
import type { Schemas } from "src/api/client";
import { type Overview, useActivity, useOverview } from "src/api/pipelines";
import { AppLink, LoadingRows, LoadingSections, Part, QueryView, Redirect, StateBadge, Time } from "src/components";
import { LinesAlert } from "src/components/LinesAlert";
import { formatList } from "src/format";
import { Endpoint } from "src/pages/Models/Endpoint";
import { HistoryList } from "src/pages/Models/HistoryList";
import { historyOf } from "src/pages/Models/history";
import { ModelHeader } from "src/pages/Models/ModelHeader";
import { modelOptions, useModel } from "src/pages/Models/queries";
import { DriftSection } from "src/pages/Overview/DriftSection";
import { Waiting } from "src/pages/Overview/Waiting";
import { HealthLine } from "src/pages/Pipelines/Health";
import { Headline } from "src/pages/Pipelines/ModelCell";
import { Paused } from "src/pages/Pipelines/NameCell";
import { startInWords } from "src/pages/Pipelines/RetrainedCell";
import { RunCell } from "src/pages/Pipelines/RunCell";
import { airflowDagPath, airflowRunPath, modelsPath, overviewPath } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

/** A pipeline at a glance: what serves, how it ran, whether it drifts, what waits for a person, what was decided. */
export function OverviewPage() {
  const dagId = useDagId();
  const overview = useOverview(dagId);
  return (
    <QueryView
      query={overview}
      loading={<LoadingSections titles={["Model", "Last runs", "Drift", "Decisions", "Schedule"]} columns={2} />}
    >
      {(found) =>
        found.pipeline.dag_id === dagId ? <Loaded {...found} /> : <Redirect to={overviewPath(found.pipeline.dag_id)} />
      }
    </QueryView>
  );
}

function Loaded(overview: Overview) {
  const { pipeline, models } = overview;
  const dagId = pipeline.dag_id;
  const activity = useActivity(pipeline.model?.champion ? [dagId] : []);
  return (
    <Stack gap={4}>
      <HealthLine pipeline={pipeline} activity={activity[dagId]} />
      <Waiting overview={overview} />
      {models.map((model) => (
        <ChampionSection
          key={model}
          dagId={dagId}
          model={model}
          metric={model === pipeline.model?.name ? pipeline.model.metric : null}
        />
      ))}
      <SimpleGrid columns={{ base: 1, xl: 2 }} gap={4} alignItems="start">
        <Stack gap={4} minW={0}>
          <RunSection overview={overview} />
          <DecisionSection overview={overview} />
        </Stack>
        <Stack gap={4} minW={0}>
          <DriftSection overview={overview} />
          <ScheduleSection overview={overview} />
        </Stack>
      </SimpleGrid>
    </Stack>
  );
}

/** How the last runs went, stage by stage; of one that failed, or whose model was refused, where and why. */
function RunSection({ overview: { pipeline, runs } }: { overview: Overview }) {
  const dagId = pipeline.dag_id;
  return (
    <Part boxed title="Last runs" more={<AppLink to={`${airflowDagPath(dagId)}/runs`}>All runs</AppLink>}>
      <Stack gap={3} fontSize="sm">
        {runs.length === 0 && <RunCell dagId={dagId} run={null} isPaused={pipeline.is_paused} />}
        {runs.map((run) => (
          <Grid key={run.run_id} templateColumns={{ base: "minmax(0, 1fr)", md: "minmax(0, 1fr) auto" }} columnGap={3}>
            <RunCell dagId={dagId} run={run} isPaused={pipeline.is_paused} />
            <Text color="fg.muted" whiteSpace="nowrap">
              {startInWords(run.run_type)}
            </Text>
          </Grid>
        ))}
      </Stack>
    </Part>
  );
}

const SHOWN = 8;

/** What was decided last, by whom and why: versions, candidates that were refused, retraining. */
function DecisionSection({ overview: { pipeline, models, retraining } }: { overview: Overview }) {
  const details = useQueries({ queries: models.map((model) => modelOptions(pipeline.dag_id, model)) });
  const found = details.flatMap(({ data }) => data ?? []);
  const unread = models.filter((_, place) => details[place]?.isError && !details[place].data);
  // The decisions of each model by themselves: two models have versions of the same numbers.
  const entries = found
    .flatMap(({ decisions, refused }) => historyOf(decisions, refused))
    .concat(historyOf([], [], retraining))
    .toSorted((a, b) => Date.parse(b.at) - Date.parse(a.at));
  const all = (
    <HStack gap={3}>
      {models.map((model) => (
        <AppLink key={model} to={modelsPath(pipeline.dag_id, { model, tab: "decisions" })}>
          {models.length === 1 ? "All decisions" : model}
        </AppLink>
      ))}
    </HStack>
  );
  return (
    <Part boxed title="Decisions" more={all}>
      <LinesAlert lines={[unread.length > 0 && `Not known: the record of ${formatList(unread)} cannot be read.`]} />
      {entries.length > 0 && <HistoryList entries={entries.slice(0, SHOWN)} brief />}
      {details.some(({ isPending }) => isPending) && <LoadingRows rows={3} />}
      {entries.length === 0 && details.every(({ data }) => data) && (
        <Text fontSize="sm" color="fg.muted">
          No decisions yet.
        </Text>
      )}
    </Part>
  );
}

interface Props {
  dagId: string;
  model: string;
  metric: Schemas["HeadlineMetric"] | null;
}

/** What serves of a model, how good it was when it was evaluated, and how it does now. */
function ChampionSection({ dagId, model, metric }: Props) {
  const detail = useModel(dagId, model);
  return (
    <Box as="section" aria-label={`Model ${model}`}>
      <QueryView query={detail} loading={<LoadingSections titles={[model]} />}>
        {(found) =>
          found.champion === null && found.decisions.length === 0 ? (
            <Text color="fg.muted" fontSize="sm">
              No version of <AppLink to={modelsPath(dagId, { model })}>{model}</AppLink> serves yet: the first run that
              reaches its deployment registers version 1.
            </Text>
          ) : (
            <Stack gap={3}>
              <HStack gap={3} fontSize="sm">
                <AppLink to={modelsPath(dagId, { model })} fontWeight="semibold" fontSize="md">
                  {model}
                </AppLink>
                {metric && <Headline metric={metric} />}
              </HStack>
              <ModelHeader dagId={dagId} detail={found} />
              {found.champion && <Endpoint dagId={dagId} detail={found} />}
            </Stack>
          )
        }
      </QueryView>
    </Box>
  );
}

/** What starts the pipeline, and the DAGs that watch its model or score tables with it. */
function ScheduleSection({ overview: { pipeline, schedules } }: { overview: Overview }) {
  return (
    <Part boxed title="Schedule">
      <Stack gap={3} fontSize="sm">
        {schedules.map((schedule) => {
          const run = pipeline.monitors.find(({ dag_id }) => dag_id === schedule.dag_id)?.last_run;
          return (
            <Stack key={schedule.dag_id} gap={0.5}>
              <HStack gap={2} wrap="wrap">
                <AppLink to={airflowDagPath(schedule.dag_id)} fontWeight="medium" wordBreak="break-word">
                  {schedule.dag_id}
                </AppLink>
                {schedule.dag_id !== pipeline.dag_id && (
                  <Text color="fg.muted">
                    {pipeline.monitors.some(({ dag_id }) => dag_id === schedule.dag_id)
                      ? "monitors the model"
                      : "scores tables with the model"}
                  </Text>
                )}
                {schedule.is_paused && <Paused />}
                {run && (
                  <AppLink to={airflowRunPath(schedule.dag_id, run.run_id)} title={run.run_id} flexWrap="wrap">
                    <StateBadge state={run.state} size="xs" /> <Time at={run.ended_at ?? run.run_after} />
                  </AppLink>
                )}
              </HStack>
              <Text color="fg.muted">
                <Starts schedule={schedule} />
              </Text>
            </Stack>
          );
        })}
      </Stack>
    </Part>
  );
}

function Starts({
  schedule: { description, summary, next_run, assets, is_paused },
}: {
  schedule: Schemas["Schedule"];
}) {
  const starting = Object.entries(assets);
  return (
    <>
      {starting.length === 0 ? (description ?? summary ?? "No schedule") : "Started by "}
      {starting.map(([name, updated_by], index) => (
        <span key={name}>
          {index > 0 && ", "}
          <b>{name}</b>
          {updated_by.length > 0 && (
            <>
              {", which "}
              {updated_by.join(", ")}
              {updated_by.length > 1 ? " update" : " updates"}
            </>
          )}
        </span>
      ))}
      {next_run && (
        <>
          {"; next run "}
          <Time at={next_run} />
          {is_paused && ", once it is no longer paused"}
        </>
      )}
    </>
  );
}
