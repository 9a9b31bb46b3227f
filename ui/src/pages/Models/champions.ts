import type { ModelDetail } from "src/pages/Models/queries";

/** Versions that were champions, the latest first. */
export function formerChampions(decisions: ModelDetail["decisions"], champion: number): number[] {
  const took = decisions.filter(({ event }) => event === "deployed" || event === "promoted");
  return [...new Set(took.map(({ version }) => version))].filter((version) => version !== champion);
}
