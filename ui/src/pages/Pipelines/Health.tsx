import { Box, HStack, Skeleton, Stack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import type { Activity, Pipeline } from "src/api/pipelines";
import { AppLink, StateBadge, Time } from "src/components";
import { airflowDagPath, airflowRunPath, modelsPath, overviewPath, skewPath } from "src/routes";

export type Finding = Schemas["Finding"];
export type HealthState = Finding["state"];

/** The words of each state, worst first; of the counts above the list, too. */
export const HEALTH: Record<HealthState, string> = {
  broken: "broken",
  unknown: "not known",
  waiting: "waits for you",
  warning: "warning",
  idle: "not serving yet",
  fine: "fine",
};
const ORDER = Object.keys(HEALTH);

/** What is wrong with a pipeline, worst first, with what its server answers; the first is its health. */
export function findingsOf({ health }: Pipeline, activity: Activity | undefined): [Finding, ...Finding[]] {
  const wrong = [...(activity?.health ?? []), ...health].toSorted(
    (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state),
  );
  const found = wrong.length > 1 ? wrong.filter(({ state }) => state !== "fine") : wrong;
  return found as [Finding, ...Finding[]];
}

/** Place of the health in the order of the list: the worst comes first. */
export const healthRank = (pipeline: Pipeline, activity: Activity | undefined): number =>
  ORDER.indexOf(findingsOf(pipeline, activity)[0].state);

/** Whether the health may still become worse, by what the server answers. */
export const isPending = ({ model }: Pipeline, activity: Activity | undefined): boolean =>
  Boolean(model?.champion) && activity === undefined;

function pathOf(dagId: string, model: string | undefined, { about, dag_id, run_id }: Finding): string {
  if (dag_id) {
    return run_id ? airflowRunPath(dag_id, run_id) : airflowDagPath(dag_id);
  }
  if (about === "skew") {
    return skewPath(dagId);
  }
  if (about === "question" || about === "run" || model === undefined) {
    return overviewPath(dagId);
  }
  return modelsPath(dagId, { model, tab: about === "performance" ? "performance" : undefined });
}

/** A finding in a sentence: `drift since Monday: dewp`. */
function Sentence({ pipeline, finding, shown }: { pipeline: Pipeline; finding: Finding; shown: "row" | "page" }) {
  const { about, text, since, detail } = finding;
  const isEvent = about === "run" || about === "scoring";
  return (
    <Text truncate={shown === "row"} minW={0} overflowWrap="anywhere">
      <AppLink to={pathOf(pipeline.dag_id, pipeline.model?.name, finding)} color={shown === "row" ? "fg.muted" : "fg"}>
        {text}
      </AppLink>
      {since && (isEvent ? " " : " since ")}
      {since && <Time at={since} since={!isEvent} />}
      {detail && (
        <Text as="span" color="fg.muted">
          : {detail}
        </Text>
      )}
    </Text>
  );
}

interface Props {
  pipeline: Pipeline;
  activity: Activity | undefined;
}

/** The health of a pipeline in a row: the worst that is known of it, and why. */
export function HealthOf({ pipeline, activity }: Props) {
  const [worst] = findingsOf(pipeline, activity);
  if (isPending(pipeline, activity) && worst.state === "fine") {
    return <Skeleton height="18px" width="180px" role="status" aria-label="Loading from the server" />;
  }
  return (
    <>
      <StateBadge state={worst.state} size="xs" py={0}>
        {HEALTH[worst.state]}
      </StateBadge>
      <Sentence pipeline={pipeline} finding={worst} shown="row" />
    </>
  );
}

/** The health of a pipeline at the top of its page: the worst, and whatever else is wrong. */
export function HealthLine({ pipeline, activity }: Props) {
  const [worst, ...more] = findingsOf(pipeline, activity);
  if (isPending(pipeline, activity) && worst.state === "fine") {
    return <Skeleton height="24px" width="320px" role="status" aria-label="Loading from the server" />;
  }
  return (
    <Stack as="section" aria-label="Health" gap={1} fontSize="sm">
      {[worst, ...more].map((finding, place) => (
        <HStack key={`${finding.about} ${finding.text}`} gap={2} align="flex-start">
          <Box width="32" flexShrink={0}>
            <StateBadge state={finding.state} size={place === 0 ? "md" : "sm"}>
              {HEALTH[finding.state]}
            </StateBadge>
          </Box>
          <Sentence pipeline={pipeline} finding={finding} shown="page" />
        </HStack>
      ))}
    </Stack>
  );
}
