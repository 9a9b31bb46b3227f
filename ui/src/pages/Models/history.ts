/** What was decided on a model: on its versions, on candidates that never became one, on retraining. */

import type { Schemas } from "src/api/client";
import type { Decision } from "src/pages/Models/queries";
import { type Group, groupDecisions } from "src/pages/Models/rollouts";

export type RefusedCandidate = Schemas["Candidate"];
type Retraining = Schemas["MonitorDecision"];

/** Something that was decided: a decision or a whole rollout, a refused candidate, or a word about a retraining. */
export type Entry = { at: string } & (
  | { kind: "decisions"; group: Group }
  | { kind: "refused"; candidate: RefusedCandidate }
  | { kind: "retraining"; retraining: Retraining }
);

/** All of it, the newest first. */
export function historyOf(
  decisions: readonly Decision[],
  refused: readonly RefusedCandidate[],
  retraining: readonly Retraining[] = [],
): Entry[] {
  const entries: Entry[] = [
    ...groupDecisions(decisions).map((group): Entry => ({ kind: "decisions", at: group[0].at, group })),
    ...refused.map((candidate): Entry => ({ kind: "refused", at: candidate.at, candidate })),
    ...retraining.flatMap((each): Entry[] => (each.at ? [{ kind: "retraining", at: each.at, retraining: each }] : [])),
  ];
  return entries.toSorted((a, b) => Date.parse(b.at) - Date.parse(a.at));
}

/** What tells an entry from the others. */
export function keyOf(entry: Entry): string {
  const { at, kind } = entry;
  return kind === "decisions" ? `${at} ${entry.group[0].event} ${entry.group[0].version}` : `${at} ${kind}`;
}
