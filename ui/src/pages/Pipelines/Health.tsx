import { Box, HStack, Skeleton, Stack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import type { Activity, Pipeline } from "src/api/pipelines";
import { AppLink, StateBadge, Time } from "src/components";
import { metricsInWords } from "src/pages/Models/words";
import { airflowDagPath, airflowRunPath, modelsPath, overviewPath, skewPath } from "src/routes";

type Told = Schemas["Finding"];
type HealthState = Told["state"] | "pending";
type Finding = Omit<Told, "state"> & { state: HealthState };

/** The words of each state, worst first; of the counts above the list, too. */
const HEALTH: Record<HealthState, string> = {
  broken: "broken",
  waiting: "waits for you",
  unknown: "not known",
  warning: "warning",
  pending: "not known yet",
  idle: "not serving yet",
  fine: "fine",
};
const ORDER = Object.keys(HEALTH);
/** Stands for the server's answer while it is awaited: it may say that the pipeline is broken. */
const PENDING = { state: "pending", about: "server", text: "", detail: "" } as Finding;

/** What is wrong with a pipeline, worst first, with what its server answers; the first is its health. */
export function findingsOf({ model, health }: Pipeline, activity: Activity | undefined): [Finding, ...Finding[]] {
  const asked = model?.champion ? [PENDING] : [];
  const wrong = [...(activity?.health ?? asked), ...health].toSorted(
    (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state),
  );
  const found = wrong.length > 1 ? wrong.filter(({ state }) => state !== "fine") : wrong;
  return found as [Finding, ...Finding[]];
}

/** Place of the health in the order of the list: the worst comes first. */
export const healthRank = (pipeline: Pipeline, activity: Activity | undefined): number =>
  ORDER.indexOf(findingsOf(pipeline, activity)[0].state);

function pathOf(dagId: string, model: string | undefined, { about, dag_id, run_id }: Finding): string {
  if (dag_id) {
    return run_id ? airflowRunPath(dag_id, run_id) : airflowDagPath(dag_id);
  }
  if (about === "skew") {
    return skewPath(dagId);
  }
  if (about === "question" || about === "run" || about === "stage" || model === undefined) {
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
      <AppLink
        to={pathOf(pipeline.dag_id, pipeline.model?.name, finding)}
        display="inline"
        color={shown === "row" ? "fg.muted" : "fg"}
      >
        {text}
      </AppLink>
      {since && (isEvent ? " " : " since ")}
      {since && <Time at={since} since={!isEvent} />}
      {detail && (
        <Text as="span" color="fg.muted">
          : {about === "performance" ? metricsInWords(detail) : detail}
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
  if (worst.state === "pending") {
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
  return (
    <Stack as="section" aria-label="Health" gap={1} fontSize="sm">
      {findingsOf(pipeline, activity).map((finding, place) =>
        finding.state === "pending" ? (
          <Skeleton key="pending" height="24px" width="320px" role="status" aria-label="Loading from the server" />
        ) : (
          <HStack key={`${finding.about} ${finding.text}`} gap={2} align="flex-start">
            <Box width="32" flexShrink={0}>
              <StateBadge state={finding.state} size={place === 0 ? "md" : "sm"}>
                {HEALTH[finding.state]}
              </StateBadge>
            </Box>
            <Sentence pipeline={pipeline} finding={finding} shown="page" />
          </HStack>
        ),
      )}
    </Stack>
  );
}
