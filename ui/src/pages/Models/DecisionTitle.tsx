import { HStack, Text, Timeline } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { Time } from "src/components/Time";
import type { Decision } from "src/pages/Models/queries";
import { titleOf } from "src/pages/Models/words";
import { airflowTaskPath } from "src/routes";

/** What was decided, when, and by whom. */
export function DecisionTitle({ decision, title }: { decision: Decision; title?: string }) {
  return (
    <HStack gap={2} wrap="wrap">
      <Timeline.Title fontWeight="semibold">{title ?? titleOf(decision)}</Timeline.Title>
      <Text fontSize="sm" color="fg.muted">
        <Time at={decision.at} />
        {decision.by && <By by={decision.by} />}
      </Text>
    </HStack>
  );
}

function By({ by }: { by: Schemas["DecidedBy"] }) {
  if (by.user) {
    return (
      <>
        {" by "}
        <Text as="span" fontWeight="semibold" color="fg">
          {by.user}
        </Text>
      </>
    );
  }
  if (by.dag_id && by.run_id && by.task_id) {
    const task = { dag_id: by.dag_id, run_id: by.run_id, task_id: by.task_id, map_index: -1 };
    return (
      <>
        {" by "}
        <AppLink to={airflowTaskPath(task)} title={by.run_id}>
          {by.dag_id}.{by.task_id}
        </AppLink>
      </>
    );
  }
  return <> by another DAG</>;
}
