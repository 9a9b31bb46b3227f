import { useQueries } from "@tanstack/react-query";
import { api, refetchAfter } from "src/api/client";
import type { Curve } from "src/pages/Runs/curves";
import { isLive, type Run } from "src/pages/Runs/figures";

const LIVE_MS = 2000;
const KEPT_MS = 300_000;

/** The curves of some runs, asked for again while a run goes on. */
export function useCurves(dagId: string, runs: readonly Pick<Run, "run_id" | "status">[]) {
  return useQueries({
    queries: runs.map((run) =>
      api.queryOptions(
        "get",
        "/api/dags/{dag_id}/training-runs/{training_id}/curves",
        { params: { path: { dag_id: dagId, training_id: run.run_id } } },
        isLive(run) ? { refetchInterval: (query) => refetchAfter(LIVE_MS, query) } : { staleTime: KEPT_MS },
      ),
    ),
    combine: (answers) => ({
      curves: answers.flatMap(({ data }): Curve[] => data ?? []),
      isPending: answers.some((each) => each.isPending),
      error: answers.find((each) => each.isError)?.error ?? null,
    }),
  });
}
