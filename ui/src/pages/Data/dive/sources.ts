/** Which artifacts of a pipeline have rows to look at. */

import type { Schemas } from "src/api/client";
import { type ArtifactRef, formatArtifact, refOf } from "src/routes";

/** An artifact to choose. */
interface Source {
  ref: ArtifactRef;
  key: string;
  /** All its rows, where the task counted them. */
  rows: number | null;
}

/** The sources of one DAG run, in the order of the pipeline. */
export interface SourceRun {
  run: Schemas["RunSummary"];
  sources: Source[];
}

const WITHOUT_ROWS = ["schema", "model", "evaluation", "infra_blessing", "deployment", "rollout", "skew", "anomalies"];
const FIRST = "examples";

/** The runs that have rows, the newest first; of validations, those that set rows aside. */
export function sourcesOf(runs: readonly Schemas["RunSummary"][]): SourceRun[] {
  return runs.flatMap((run) => {
    const sources = run.artifacts.filter(hasRows).map((artifact): Source => {
      const ref = refOf(artifact);
      return { ref, key: formatArtifact(ref), rows: artifact.total_rows?.rows_out ?? null };
    });
    return sources.length ? [{ run, sources }] : [];
  });
}

function hasRows(artifact: Schemas["ArtifactSummary"]): boolean {
  const setAside = Object.values(artifact.rows).some(({ rejected }) => Object.keys(rejected).length > 0);
  return !WITHOUT_ROWS.includes(artifact.kind) || (artifact.kind === "anomalies" && setAside);
}

/** What is shown where the address names nothing: the newest examples. */
export function firstSource(runs: readonly SourceRun[]): Source | null {
  const all = runs.flatMap(({ sources }) => sources);
  return all.find(({ ref }) => ref.kind === FIRST) ?? all[0] ?? null;
}
