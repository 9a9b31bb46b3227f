import { Box, Heading, HStack, Progress, Stack, Text } from "@chakra-ui/react";
import {
  AppLink,
  airflowTaskPath,
  formatNumber,
  instanceLabel,
  Notice,
  plural,
  StateBadge,
  Time,
  WARNING,
} from "airflow-hops";
import { StopButton } from "src/extensions/experiments/StopButton";
import { inWords, isSearching, type Study, type StudyDetail } from "src/extensions/experiments/trials";

/** What is known of a study as a whole, and the button that stops it. */
export function StudyHeader({ dagId, study, onStop }: { dagId: string; study: StudyDetail; onStop: () => void }) {
  const searching = isSearching(study);
  return (
    <Stack gap={2}>
      <HStack gap={3} wrap="wrap">
        <Heading as="h2" size="md" overflowWrap="anywhere">
          {study.name}
        </Heading>
        <StudyState study={study} />
        {study.state === "running" && (
          <Box marginInlineStart="auto">
            <StopButton dagId={dagId} study={study} trial={null} onStop={onStop} />
          </Box>
        )}
      </HStack>
      <Text fontSize="sm" color="fg.muted">
        {study.program}, sampler {study.sampler}, pruner {study.pruner}, {study.parallel} at once, seed {study.seed}.
        Task{" "}
        <AppLink to={airflowTaskPath(study)}>
          {study.task_id}
          {instanceLabel(study)}
        </AppLink>{" "}
        of run {study.run_id}, started <Time at={study.started} />
        {study.ended !== null && (
          <>
            , ended <Time at={study.ended} />
          </>
        )}
        .
      </Text>
      {study.error !== null && <Notice status="error" size="sm" title={study.error} />}
      {study.state === "running" && (!searching || study.task_state === null) && (
        <Text fontSize="sm" color={WARNING}>
          {study.task_state === null
            ? "Airflow has no such task instance any more: whether the search goes on is not known."
            : `The search does not run: its task is ${study.task_state}. Clear the task, and it goes on with the trials that it has.`}
        </Text>
      )}
      <Progress.Root
        value={Math.min((100 * study.done) / Math.max(study.trials, 1), 100)}
        colorPalette={searching ? "running" : study.state === "failed" ? "failed" : "gray"}
        size="sm"
        aria-label="Trials that have ended"
      >
        <HStack mb={1} gap={4} wrap="wrap" fontSize="sm">
          <Text fontWeight="semibold">
            {formatNumber(study.done)} of {plural(study.trials, "trial")}
          </Text>
          <Text color="fg.muted">{countsInWords(study)}</Text>
          {study.best !== null && (
            <Text marginInlineStart={{ md: "auto" }}>
              Best: {bestInWords(study)}, trial {study.best}{" "}
              <Text as="span" color="fg.muted">
                ({Object.entries(study.best_params).map(paramInWords).join(", ")})
              </Text>
            </Text>
          )}
        </HStack>
        <Progress.Track>
          <Progress.Range />
        </Progress.Track>
      </Progress.Root>
    </Stack>
  );
}

/** The state of a study; where its task has ended without its record, that of the task. */
export function StudyState({ study }: { study: Study }) {
  return <StateBadge state={study.state !== "running" || isSearching(study) ? study.state : "killed"} />;
}

export const countsInWords = ({ counts }: Study): string =>
  Object.entries(counts)
    .map(([state, count]) => `${formatNumber(count)} ${state}`)
    .join(", ");

/** The values of the best trial by their metrics' names. */
export const bestInWords = ({ best, best_values, metrics }: Study): string =>
  best === null ? "–" : metrics.map((name, metric) => `${name} ${formatNumber(best_values[metric])}`).join(", ");

const paramInWords = ([name, value]: [string, unknown]): string =>
  `${name} ${typeof value === "number" ? formatNumber(value) : inWords(value)}`;
