import { Box, HStack, Text, Timeline } from "@chakra-ui/react";
import {
  LuArrowUpToLine,
  LuCheck,
  LuCircleDot,
  LuFlaskConical,
  LuPackage,
  LuPackageX,
  LuSplit,
  LuUndo2,
} from "react-icons/lu";
import type { Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { Empty } from "src/components/Empty";
import { Time } from "src/components/Time";
import type { Decision, ModelDetail } from "src/pages/Models/queries";
import { RolloutCard } from "src/pages/Models/RolloutCard";
import { groupDecisions } from "src/pages/Models/rollouts";
import { TrafficBar } from "src/pages/Models/TrafficBar";
import { titleOf } from "src/pages/Models/words";
import { airflowTaskPath } from "src/routes";

const ICONS: Record<string, typeof LuCheck> = {
  deployed: LuPackage,
  canary: LuFlaskConical,
  step: LuCircleDot,
  approved: LuCheck,
  traffic: LuSplit,
  promoted: LuArrowUpToLine,
  rolled_back: LuUndo2,
  undeployed: LuPackageX,
};

/** Every decision on the model, the newest first: who, when, why; rollouts step by step. */
export function DecisionsTab({ detail }: { detail: ModelDetail }) {
  if (detail.decisions.length === 0) {
    return <Empty title="Nothing has been decided yet">A run of the pipeline that deploys a version begins it.</Empty>;
  }
  return (
    <Timeline.Root size="sm" maxW="6xl">
      {groupDecisions(detail.decisions).map((group) => {
        const [newest] = group;
        const Icon = ICONS[newest.event] ?? LuCircleDot;
        return (
          <Timeline.Item key={`${newest.at} ${newest.event} ${newest.version}`}>
            <Timeline.Connector>
              <Timeline.Separator />
              <Timeline.Indicator>
                <Icon aria-hidden />
              </Timeline.Indicator>
            </Timeline.Connector>
            <Timeline.Content pb={4}>
              {group.length > 1 ? <RolloutCard events={group} /> : <Single decision={newest} />}
            </Timeline.Content>
          </Timeline.Item>
        );
      })}
    </Timeline.Root>
  );
}

function Single({ decision }: { decision: Decision }) {
  return (
    <Box>
      <DecisionTitle decision={decision} />
      <Text fontSize="sm" whiteSpace="pre-wrap" wordBreak="break-word">
        {decision.why}
      </Text>
      {decision.traffic && Object.keys(decision.traffic).length > 1 && (
        <Box maxW="md" mt={1}>
          <TrafficBar
            compact
            shares={Object.entries(decision.traffic).map(([version, percent]) => ({
              version: Number(version),
              percent,
            }))}
          />
        </Box>
      )}
    </Box>
  );
}

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
