import { Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink, Time, TwoLines } from "src/components";
import { airflowRunPath } from "src/routes";

const WHY: Record<string, string> = {
  asset_triggered: "an asset was updated",
  scheduled: "by its schedule",
  backfill: "by a backfill",
  manual: "by hand",
};

/** Why a run was started, by its type. */
export const startInWords = (runType: string): string => WHY[runType] ?? runType;

/** Why the last training was made, in words. */
function reasonOf({ reason, triggered_by, run_type }: Schemas["LastRetraining"]): string {
  return reason ?? (triggered_by ? `started by ${triggered_by}` : startInWords(run_type));
}

/** When the model was last trained, and why. */
export function RetrainedCell({ dagId, retraining }: { dagId: string; retraining: Schemas["LastRetraining"] | null }) {
  if (retraining === null) {
    return <Text color="fg.muted">not trained yet</Text>;
  }
  const reason = reasonOf(retraining);
  return (
    <TwoLines
      first={
        <AppLink to={airflowRunPath(dagId, retraining.run_id)} title={retraining.run_id} truncate>
          <Time at={retraining.at} />
        </AppLink>
      }
      second={
        <Text truncate title={reason}>
          {reason}
        </Text>
      }
    />
  );
}
