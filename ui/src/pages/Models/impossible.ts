import { formerChampions, promotable } from "src/pages/Models/champions";
import type { ModelDetail } from "src/pages/Models/queries";

/** Why something cannot be decided now; null where it can. */
export function impossible(action: string, detail: ModelDetail, isAway: boolean): string | null {
  const { champion, challenger, decisions } = detail;
  if (action === "owners") {
    return null;
  }
  if (isAway && action !== "rollBack") {
    return "The model server does not respond, so it could not apply the decision.";
  }
  if (!champion) {
    return "No version serves; a run of the pipeline deploys one.";
  }
  if (action === "promote" && promotable(detail).length === 0) {
    return "There is no other version that was not champion before; those are restored by a rollback.";
  }
  if (action === "traffic" && !challenger) {
    return "Traffic is shared between champion and challenger, and there is no challenger: a run of the pipeline deploys one.";
  }
  if (action === "rollBack" && !challenger && formerChampions(decisions, champion.version).length === 0) {
    return "There was no champion before this one.";
  }
  if (action === "replace" && detail.candidates.length === 0) {
    return "No other model was evaluated; a run of the pipeline trains one.";
  }
  return null;
}
