import { Grid, Stack, Text } from "@chakra-ui/react";
import type { Overview } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { Section } from "src/pages/Overview/Section";
import { startInWords } from "src/pages/Pipelines/RetrainedCell";
import { RunCell } from "src/pages/Pipelines/RunCell";
import { airflowDagPath } from "src/routes";

/** How the last runs went, stage by stage; of one that failed, or whose model was refused, where and why. */
export function RunSection({ overview: { pipeline, runs } }: { overview: Overview }) {
  const dagId = pipeline.dag_id;
  return (
    <Section title="Last runs" more={<AppLink to={`${airflowDagPath(dagId)}/runs`}>All runs</AppLink>}>
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
    </Section>
  );
}
