import { Box, Text, Timeline } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { LuBan, LuCircleDot, LuRefreshCw } from "react-icons/lu";
import { AppLink } from "src/components";
import { DecisionTitle } from "src/pages/Models/DecisionTitle";
import { findingsInWords } from "src/pages/Models/findings";
import { type Entry, keyOf, type RefusedCandidate } from "src/pages/Models/history";
import type { Decision } from "src/pages/Models/queries";
import { RolloutCard } from "src/pages/Models/RolloutCard";
import { titleOfGroup } from "src/pages/Models/rollouts";
import { TrafficBar } from "src/pages/Models/TrafficBar";
import { metricsInWords } from "src/pages/Models/words";
import { decisionLabel } from "src/pages/Skew/words";
import { airflowRunPath, resultPath } from "src/routes";

const BRIEF_LINES = 3;

/** What was decided, the newest first. `brief` tells a rollout in a sentence, without its steps. */
export function HistoryList({ entries, brief = false }: { entries: readonly Entry[]; brief?: boolean }) {
  return (
    <Timeline.Root size="sm" maxW="6xl">
      {entries.map((entry) => {
        const Icon = iconOf(entry);
        return (
          <Timeline.Item key={keyOf(entry)}>
            <Timeline.Connector>
              <Timeline.Separator />
              <Timeline.Indicator>
                <Icon aria-hidden />
              </Timeline.Indicator>
            </Timeline.Connector>
            <Timeline.Content pb={4} minW={0}>
              <Content entry={entry} brief={brief} />
            </Timeline.Content>
          </Timeline.Item>
        );
      })}
    </Timeline.Root>
  );
}

function iconOf(entry: Entry): typeof LuBan {
  const requested = entry.kind === "retraining" && entry.retraining.outcome === "requested";
  return requested ? LuRefreshCw : entry.kind === "decisions" ? LuCircleDot : LuBan;
}

function Content({ entry, brief }: { entry: Entry; brief: boolean }) {
  switch (entry.kind) {
    case "refused":
      return <Refused candidate={entry.candidate} />;
    case "retraining": {
      const { retraining } = entry;
      const started = retraining.started[0];
      return (
        <Box>
          <DecisionTitle title={decisionLabel(retraining)} at={entry.at} by={retraining.task} />
          <Why>
            {retraining.reason}
            {started && (
              <>
                {" · "}
                <AppLink to={airflowRunPath(started.dag_id, started.run_id)}>the run that it started</AppLink>
              </>
            )}
          </Why>
        </Box>
      );
    }
    case "decisions": {
      const [newest] = entry.group;
      return entry.group.length > 1 && !brief ? (
        <RolloutCard events={entry.group} />
      ) : (
        <Single decision={newest} title={titleOfGroup(entry.group)} brief={brief} />
      );
    }
  }
}

/** A candidate that never became a version, and why. */
function Refused({ candidate: { at, why, judged, champion_version } }: { candidate: RefusedCandidate }) {
  return (
    <Box>
      <DecisionTitle title="Candidate refused, and not deployed" at={at} by={judged} />
      <Why>
        {metricsInWords(why) || "No reason was given."}{" "}
        <AppLink to={resultPath(judged)}>
          {champion_version === null ? "Its figures" : `Its figures beside those of version ${champion_version}`}
        </AppLink>
        {" · "}
        <AppLink to={airflowRunPath(judged.dag_id, judged.run_id)}>its run</AppLink>
      </Why>
    </Box>
  );
}

function Single({ decision, title, brief }: { decision: Decision; title: string; brief: boolean }) {
  return (
    <Box>
      <DecisionTitle title={title} at={decision.at} by={decision.by} />
      <Why lines={brief ? BRIEF_LINES : undefined}>
        {decision.findings.length > 0
          ? `At ${decision.percent}%: ${findingsInWords(decision.findings)}`
          : metricsInWords(decision.why)}
      </Why>
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

function Why({ lines, children }: { lines?: number; children: ReactNode }) {
  const title = lines !== undefined && typeof children === "string" ? children : undefined;
  return (
    <Text fontSize="sm" whiteSpace="pre-line" wordBreak="break-word" lineClamp={lines} title={title}>
      {children}
    </Text>
  );
}
