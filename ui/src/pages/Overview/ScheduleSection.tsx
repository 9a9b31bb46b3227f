import { HStack, Stack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import type { Overview } from "src/api/pipelines";
import { AppLink } from "src/components/AppLink";
import { StateBadge } from "src/components/StateBadge";
import { Time } from "src/components/Time";
import { Section } from "src/pages/Overview/Section";
import { Paused } from "src/pages/Pipelines/NameCell";
import { airflowDagPath, airflowRunPath } from "src/routes";

/** What starts the pipeline, and the DAGs that watch its model. */
export function ScheduleSection({ overview: { pipeline, schedules } }: { overview: Overview }) {
  return (
    <Section title="Schedule">
      <Stack gap={3} fontSize="sm">
        {schedules.map((schedule) => {
          const run = pipeline.monitors.find(({ dag_id }) => dag_id === schedule.dag_id)?.last_run;
          return (
            <Stack key={schedule.dag_id} gap={0.5}>
              <HStack gap={2} wrap="wrap">
                <AppLink to={airflowDagPath(schedule.dag_id)} fontWeight="medium" wordBreak="break-word">
                  {schedule.dag_id}
                </AppLink>
                {schedule.dag_id !== pipeline.dag_id && <Text color="fg.muted">monitors the model</Text>}
                {schedule.is_paused && <Paused />}
                {run && (
                  <AppLink to={airflowRunPath(schedule.dag_id, run.run_id)} title={run.run_id}>
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
    </Section>
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
