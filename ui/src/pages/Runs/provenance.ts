import type { Schemas } from "src/api/client";
import { formatNumber } from "src/format";
import type { ArtifactRef } from "src/routes";

export type Provenance = Schemas["RunProvenance"];

/** Values of runs by name, in the runs' order. */
type Rows = { name: string; values: (string | null)[] }[];

function rowsOf<Item>(items: readonly (readonly Item[])[], entries: (item: Item) => [string, string | null][]): Rows {
  const rows = new Map<string, (string | null)[]>();
  items.forEach((ofRun, place) => {
    for (const [name, value] of ofRun.flatMap(entries)) {
      const row = rows.get(name) ?? items.map(() => null);
      row[place] = row[place] ? `${row[place]}, ${value}` : value;
      rows.set(name, row);
    }
  });
  return [...rows].map(([name, values]) => ({ name, values }));
}

/** The artifacts that runs read: contents, window and rows of each role. */
export const dataRows = (found: readonly (Provenance | null)[]): Rows =>
  rowsOf(
    found.map((each) => each?.data ?? []),
    ({ role, fingerprint, window, rows }) => [
      [`${role}: fingerprint`, `${fingerprint.slice(0, 12)}…`],
      ...(window ? ([[`${role}: window`, window.map(day).join(" to ")]] as [string, string][]) : []),
      ...Object.entries(rows).map(([split, count]): [string, string] => [
        `${role}: rows of ${split}`,
        formatNumber(count),
      ]),
    ],
  );

/** Versions of the libraries of runs, those of Python and this package first. */
export const libraryRows = (found: readonly (Provenance | null)[]): Rows =>
  rowsOf(
    found.map((each) => (each ? [each] : [])),
    ({ python, package: own, packages }) => [
      ...(python ? ([["Python", python]] as [string, string][]) : []),
      ...(own ? ([["airflow-hops", own]] as [string, string][]) : []),
      ...Object.entries(packages ?? {}).sort(([a], [b]) => a.localeCompare(b)),
    ],
  );

/** The statistics of what runs read, each once. */
export function statisticsOf(found: readonly (Provenance | null)[]): ArtifactRef[] {
  const all = found.flatMap((each) => each?.data ?? []).filter(({ made_by }) => made_by?.kind === "statistics");
  return [...new Map(all.flatMap(({ uri, made_by }) => (made_by ? [[uri, made_by] as const] : []))).values()];
}

const day = (time: string | null): string => (time === null ? "…" : time.replace(/T00:00:00(\+00:00|Z)$/, ""));
