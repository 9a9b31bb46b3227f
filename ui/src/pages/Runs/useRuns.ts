import { keepPreviousData } from "@tanstack/react-query";
import { useMemo } from "react";
import { api } from "src/api/client";
import { isLive, type Run } from "src/pages/Runs/figures";

const PAGE = 100;
const LIVE_MS = 3000;

/** Training runs in pages: filtered and sorted by the API, asked for again while one of them runs. */
export function useRuns(dagId: string, search: string, sort: string) {
  const query = api.useInfiniteQuery(
    "get",
    "/api/dags/{dag_id}/training-runs",
    { params: { path: { dag_id: dagId }, query: { search, sort: sort || "-start_time", limit: PAGE } } },
    {
      pageParamName: "offset",
      initialPageParam: 0,
      getNextPageParam: (page, pages) => (PAGE * pages.length < page.total_entries ? PAGE * pages.length : undefined),
      placeholderData: keepPreviousData,
      refetchInterval: ({ state }) =>
        state.data?.pages.some((page) => (page as { entries: Run[] }).entries.some(isLive)) ? LIVE_MS : false,
    },
  );
  const runs = useMemo<Run[]>(() => query.data?.pages.flatMap((page) => page.entries) ?? [], [query.data]);
  return { query, runs, problems: query.data?.pages.at(-1)?.problems ?? [] };
}
