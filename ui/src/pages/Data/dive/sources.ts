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

/** The runs that have statistics, and with them sampled rows, the newest first. */
export function sourcesOf(runs: readonly Schemas["RunSummary"][]): SourceRun[] {
  return runs.flatMap((run) => {
    const sources = run.artifacts.map((artifact): Source => {
      const ref = refOf(artifact);
      return { ref, key: formatArtifact(ref), rows: artifact.total_rows?.rows_out ?? null };
    });
    return sources.length ? [{ run, sources }] : [];
  });
}
