/** A model's history, told in rollouts. */

import type { Decision } from "src/pages/Models/queries";
import { titleOf } from "src/pages/Models/words";

/** Events of one canary, the newest first; or a single event. */
export type Group = [Decision, ...Decision[]];

const ENDS = new Set(["promoted", "rolled_back", "left", "undeployed"]);
const WITHIN = new Set(["step", "approved", "traffic"]);

/** How a canary ends, in words. */
export const OUTCOMES: Readonly<Record<string, string>> = {
  promoted: "promoted",
  rolled_back: "rolled back",
  left: "left as it is",
};

/** What came of a rollout, or what was decided: `Rollout of version 2: promoted`. */
export function titleOfGroup([newest, ...others]: Group): string {
  const outcome = OUTCOMES[newest.event];
  return others.length > 0 && outcome ? `Rollout of version ${newest.version}: ${outcome}` : titleOf(newest);
}

/** Puts the events of each canary together, from its deployment to its end; both lists have the newest first. */
export function groupDecisions(decisions: readonly Decision[]): Group[] {
  const groups: Group[] = [];
  const open = new Map<number, Decision[]>();
  let last: Decision | null = null;
  for (const decision of decisions.toReversed()) {
    const { event, version } = decision;
    if (event === "promoted" && last?.event === "rolled_back" && last.to === version) {
      continue; // the other half of a rollback
    }
    last = decision;
    const canary = open.get(version);
    if (event === "canary") {
      const group: Group = [decision];
      groups.push(group);
      open.set(version, group);
    } else if (canary && (ENDS.has(event) || WITHIN.has(event))) {
      canary.unshift(decision);
      if (ENDS.has(event) && event !== "left") {
        open.delete(version);
      }
    } else {
      groups.push([decision]);
    }
  }
  return groups.toSorted((a, b) => Date.parse(b[0].at) - Date.parse(a[0].at));
}

/** The steps of a rollout as they were judged: the share, what was counted, what became of it; the oldest first. */
export function stepsOf(group: Group): Decision[] {
  return group.filter(({ percent, canary }) => percent !== null && canary !== null).toReversed();
}
