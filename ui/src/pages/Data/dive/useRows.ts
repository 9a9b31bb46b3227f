import { keepPreviousData, useQueries, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { client } from "src/api/client";
import { asClasses, asTime, type Column, decode, type Sample } from "src/pages/Data/dive/columns";
import { type ArtifactRef, pathOf } from "src/routes";

/** Where rows come from. */
export interface Source {
  ref: ArtifactRef;
  split: string;
  /** The column of times in seconds, as the pipeline names it. */
  time: string | null;
  /** The column of the label, and names of its classes by number. */
  label: string | null;
  classes: readonly string[];
}

/** The columns that have come so far. */
export interface Rows {
  source: Source;
  columns: ReadonlyMap<string, Column>;
  rows: number;
  totalRows: number;
  /** Whether all columns that were asked for are there. */
  whole: boolean;
  error: unknown;
  retry: () => void;
}

/** Columns of all sampled rows, or of one of them. */
async function fetchColumns({ ref, split }: Source, names?: readonly string[], row?: number): Promise<Sample> {
  const { data } = await client.GET("/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/rows", {
    params: { path: pathOf(ref), query: { split, column: names && [...names], row } },
    parseAs: "arrayBuffer",
  });
  return decode(data as ArrayBuffer);
}

/** A column as what the pipeline says that it holds: times, or classes. */
const meant = (column: Column, { time, label, classes }: Source): Column =>
  column.name === time ? asTime(column) : column.name === label ? asClasses(column, classes) : column;

/**
 * One row with all digits of its numbers: of each column its only value. While another one is fetched, the row before.
 *
 * @param row its index in the sample; with null nothing is fetched
 */
export function useRow(source: Source, row: number | null) {
  return useQuery({
    queryKey: ["dive", source.ref, source.split, "row", row],
    queryFn: async () => ({
      row,
      columns: (await fetchColumns(source, undefined, row ?? 0)).columns.map((column) => meant(column, source)),
    }),
    staleTime: Number.POSITIVE_INFINITY,
    placeholderData: keepPreviousData,
    enabled: row !== null,
  });
}

/**
 * The sampled rows of a split, as columns: those that are needed, others when they are.
 *
 * @param all names of the split's columns, in the order in which they are shown
 * @param wanted those to fetch; more of them later ask for those alone that have not come
 */
export function useRows(source: Source, all: readonly string[], wanted: readonly string[]): Rows {
  const { ref, split } = source;
  const [batches, setBatches] = useState<string[][]>(() => (wanted.length ? [[...wanted]] : []));
  const names = JSON.stringify(wanted);
  useEffect(() => {
    setBatches((before) => {
      const asked = new Set(before.flat());
      const missing = (JSON.parse(names) as string[]).filter((name) => !asked.has(name));
      return missing.length ? [...before, missing] : before;
    });
  }, [names]);
  const answers = useQueries({
    queries: batches.map((batch) => ({
      queryKey: ["dive", ref, split, batch],
      queryFn: () => fetchColumns(source, batch),
      staleTime: Number.POSITIVE_INFINITY,
    })),
    combine: (results) => ({
      samples: results.map(({ data }) => data),
      error: results.find(({ isError }) => isError)?.error ?? null,
      retry: () => {
        for (const result of results) {
          if (result.isError) {
            void result.refetch();
          }
        }
      },
    }),
  });
  const there = answers.samples;
  const come = there.map((sample) => (sample ? "1" : "0")).join("");
  // biome-ignore lint/correctness/useExhaustiveDependencies: a sample never changes: which have come says it all
  const columns = useMemo(() => {
    const found = new Map(there.flatMap((sample) => sample?.columns ?? []).map((column) => [column.name, column]));
    const inOrder = all.flatMap((name) => found.get(name) ?? []);
    return new Map(inOrder.map((column) => [column.name, meant(column, source)]));
  }, [all, source, come]);
  const first = there.find((sample) => sample !== undefined);
  return {
    source,
    columns,
    rows: first?.rows ?? 0,
    totalRows: first?.totalRows ?? 0,
    whole: first !== undefined && wanted.every((name) => columns.has(name)),
    error: answers.error,
    retry: answers.retry,
  };
}
