import type { ModelDetail } from "src/pages/Models/queries";

/** Versions that were champions and were not rolled back since, the latest first: what a rollback can restore. */
export function formerChampions(decisions: ModelDetail["decisions"], champion: number): number[] {
  const of = (version: number) => decisions.find((each) => each.version === version && each.event in OUTCOMES)?.event;
  const took = decisions.filter(({ event }) => event === "deployed" || event === "promoted");
  const former = new Set(took.map(({ version }) => version));
  return [...former].filter((version) => version !== champion && of(version) !== "rolled_back");
}

const OUTCOMES = { deployed: true, promoted: true, rolled_back: true };

/** Versions that can be promoted: the challenger, and others whose taking over would not be a rollback. */
export function promotable({ challenger, champion, decisions, deployed }: ModelDetail): number[] {
  const current = champion?.version ?? 0;
  const former = formerChampions(decisions, current);
  const others = deployed.filter((version) => version !== current && !former.includes(version));
  return others.toSorted((a, b) => Number(b === challenger?.version) - Number(a === challenger?.version));
}
