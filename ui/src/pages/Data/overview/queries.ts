/** What the API is asked for by the overview. */

import { type UseQueryResult, useQueries } from "@tanstack/react-query";
import { type ApiError, api, queryClient } from "src/api/client";
import type { Listing, Shown } from "src/pages/Data/overview/datasets";
import type { Detail } from "src/pages/Data/overview/details";
import type { Distances, FeatureTable } from "src/pages/Data/overview/features";
import { type ArtifactRef, formatArtifact, pathOf } from "src/routes";

const ARTIFACT = "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}";
/** An artifact changes only when its task runs again. */
const KEPT = { staleTime: 60_000 };

/** Where a data set is. */
type Place = Pick<Shown, "ref" | "name" | "slice">;

// The client's types make lists of tuples; the schemas have them as they are.
type Results<Data> = UseQueryResult<Data, ApiError>[];

/** What data sets each artifact has. */
export function useListings(refs: readonly ArtifactRef[]): Results<Listing> {
  return useQueries({
    queries: refs.map((ref) =>
      api.queryOptions("get", `${ARTIFACT}/statistics`, { params: { path: pathOf(ref) } }, KEPT),
    ),
  }) as Results<Listing>;
}

const tableOf = ({ ref, name, slice }: Place, weighted: boolean) =>
  api.queryOptions(
    "get",
    `${ARTIFACT}/statistics/features`,
    { params: { path: pathOf(ref), query: { dataset: name, slice, weighted } } },
    KEPT,
  );

/** The tables of features of the data sets that are shown. */
export function useTables(shown: readonly Shown[], weighted: boolean): Results<FeatureTable> {
  return useQueries({ queries: shown.map((each) => tableOf(each, weighted)) }) as Results<FeatureTable>;
}

/** Asks for the tables of data sets before it is known that they will be shown. */
export function prefetchTables(expected: readonly Place[]): void {
  for (const each of expected) {
    void queryClient.prefetchQuery(tableOf(each, false));
  }
}

/** One feature in full, of each data set that has it. */
export function useDetails(shown: readonly Shown[], feature: string, weighted: boolean): Results<Detail> {
  return useQueries({
    queries: shown.map(({ ref, name, slice }) =>
      api.queryOptions(
        "get",
        `${ARTIFACT}/statistics/feature`,
        { params: { path: pathOf(ref), query: { dataset: name, slice, weighted, feature } } },
        KEPT,
      ),
    ),
  }) as Results<Detail>;
}

/**
 * How far each of the other data sets is from the first; with a feature, by every measure.
 *
 * @param ready whether it is asked for now: to compare takes longer than to tell, and whoever asks first gets the time
 */
export function useDistances(
  [first, ...others]: readonly Shown[],
  { feature, ready = true }: { feature?: string; ready?: boolean },
): Results<Distances> {
  return useQueries({
    queries: others.map(({ ref, name, slice }) =>
      api.queryOptions(
        "get",
        `${ARTIFACT}/statistics/distances`,
        {
          params: {
            path: pathOf(first?.ref ?? ref),
            query: {
              dataset: first?.name ?? name,
              slice: first?.slice,
              to: formatArtifact(ref),
              to_dataset: name,
              to_slice: slice,
              feature,
            },
          },
        },
        { ...KEPT, enabled: ready },
      ),
    ),
  }) as Results<Distances>;
}
