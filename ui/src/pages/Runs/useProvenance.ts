import { useQueries } from "@tanstack/react-query";
import { api } from "src/api/client";
import type { Run } from "src/pages/Runs/figures";
import type { Provenance } from "src/pages/Runs/provenance";

const KEPT_MS = 300_000;

/** What some runs were made from and with; null of a run of which that has not come, or cannot be told. */
export function useProvenance(dagId: string, runs: readonly Run[]) {
  return useQueries({
    queries: runs.map((run) =>
      api.queryOptions(
        "get",
        "/api/dags/{dag_id}/training-runs/{training_id}/provenance",
        { params: { path: { dag_id: dagId, training_id: run.run_id } } },
        { staleTime: KEPT_MS },
      ),
    ),
    combine: (answers) => ({
      found: answers.map(({ data }): Provenance | null => data ?? null),
      isPending: answers.some((each) => each.isPending),
      error: answers.find((each) => each.isError)?.error ?? null,
    }),
  });
}
