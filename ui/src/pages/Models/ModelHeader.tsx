import { Box, HStack, Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink, Notice, OwnedBy, StateBadge, Time } from "src/components";
import { Actions } from "src/pages/Models/Actions";
import { ServerBadge } from "src/pages/Models/Endpoint";
import type { LiveModel, ModelDetail } from "src/pages/Models/queries";
import { VersionBadge } from "src/pages/Models/versions";
import { askedInWords } from "src/pages/Models/words";
import { lineagePath } from "src/routes";

/** What serves, since when, what is being tried, and what may be done about it; with `live`, the server in a word. */
export function ModelHeader({ dagId, detail, live }: { dagId: string; detail: ModelDetail; live?: LiveModel }) {
  const { champion, challenger, decisions, owners, rollout } = detail;
  const adoption = decisions.find(({ version, why }) => version === champion?.version && why.startsWith("adopted: "));
  return (
    <Box>
      <HStack gap={4} wrap="wrap" minH="9">
        {champion ? (
          <Serves dagId={dagId} model={detail.name} state="champion" served={champion} />
        ) : (
          <Text color="fg.muted">No version serves: the model was undeployed.</Text>
        )}
        {challenger && <Serves dagId={dagId} model={detail.name} state="challenger" served={challenger} />}
        {adoption && (
          <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
            {adoption.why}
          </Text>
        )}
        <OwnedBy owners={owners} />
        {live && <ServerBadge live={live} />}
        <Box marginInlineStart="auto">
          <Actions dagId={dagId} detail={detail} />
        </Box>
      </HStack>
      {rollout && <RolloutNow rollout={rollout} />}
    </Box>
  );
}

interface Props {
  dagId: string;
  model: string;
  state: string;
  served: Schemas["VersionShare"];
}

function Serves({ dagId, model, state, served }: Props) {
  return (
    <HStack gap={2}>
      <StateBadge state={state} size="sm" />
      <VersionBadge version={served.version} size="md" />
      <Text fontSize="sm" color="fg.muted">
        since <Time at={served.since} />
        {" · "}
        <AppLink to={lineagePath(dagId, { model, version: served.version })}>lineage</AppLink>
      </Text>
    </HStack>
  );
}

function RolloutNow({ rollout }: { rollout: Schemas["Rollout"] }) {
  const { canary, doubts } = rollout;
  return (
    <Notice
      status={rollout.waits_for_approval ? "warning" : "info"}
      mt={3}
      size="sm"
      title={
        <>
          Version {rollout.version} is being rolled out: step {rollout.number} of {rollout.steps}, {rollout.percent}% of
          the traffic, since <Time at={rollout.since} />
        </>
      }
    >
      In this step {askedInWords(canary)}
      {rollout.waits_for_approval && "; it has passed, and waits for approval in Airflow"}
      {doubts.length > 0 && `; in doubt: ${doubts.join("; ")}`}
    </Notice>
  );
}
