import { Box, Text, Timeline } from "@chakra-ui/react";
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
import { Empty } from "src/components/Empty";
import { DecisionTitle } from "src/pages/Models/DecisionTitle";
import type { Decision, ModelDetail } from "src/pages/Models/queries";
import { RolloutCard } from "src/pages/Models/RolloutCard";
import { groupDecisions } from "src/pages/Models/rollouts";
import { TrafficBar } from "src/pages/Models/TrafficBar";

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
            size="compact"
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
