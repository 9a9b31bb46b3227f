import { HStack, Text, Timeline } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink, Time } from "src/components";
import { airflowTaskPath, type TaskRef } from "src/routes";

type Person = Schemas["DecidedBy"];

/** What was decided, when, and by which person or task. */
export function DecisionTitle({ title, at, by }: { title: string; at: string; by: Person | TaskRef | null }) {
  return (
    <HStack gap={2} wrap="wrap">
      <Timeline.Title fontWeight="semibold">{title}</Timeline.Title>
      <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
        <Time at={at} />
        {by && <By by={by} />}
      </Text>
    </HStack>
  );
}

function By({ by }: { by: Person | TaskRef }) {
  if ("user" in by && by.user) {
    return (
      <>
        {" by "}
        <Text as="span" fontWeight="semibold" color="fg">
          {by.user}
        </Text>
      </>
    );
  }
  const { dag_id, run_id, task_id } = by;
  if (dag_id && run_id && task_id) {
    const { map_index, iteration } = by;
    const task = { dag_id, run_id, task_id, map_index: map_index ?? -1, iteration: iteration ?? -1 };
    return (
      <>
        {" by "}
        <AppLink to={airflowTaskPath(task)} title={run_id}>
          {dag_id}.{task_id}
        </AppLink>
      </>
    );
  }
  return <> by another DAG</>;
}
