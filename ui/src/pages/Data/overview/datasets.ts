/** What is overlaid: data sets of artifacts, as the address names them, and their colours. */

import type { Schemas } from "src/api/client";
import { SERIES } from "src/components/chart/theme";
import { shortRun } from "src/format";
import type { ArtifactRef } from "src/routes";

/** A split of a statistics artifact, or a side of a skew artifact; whole, or a slice of it. */
export interface DatasetRef {
  /** Index among the artifacts of the address. */
  artifact: number;
  name: string;
  slice: string | null;
}

/** A data set that is shown, with the artifact that holds it. */
export interface Shown extends DatasetRef {
  ref: ArtifactRef;
  label: string;
  /** Its place among those that are shown: that of its colour. */
  index: number;
}

export type Listing = Schemas["StatisticsDatasets"];

/** As many as can be told apart. */
export const MAX_SHOWN = 6;

/** Data sets of one artifact that are shown at first. */
const FIRST = 3;

/** The shades of a palette that charts use too. */
export const INK = { base: "colorPalette.500", _dark: "colorPalette.400" } as const;

/** The palette of the data set that is shown at a place; in the order of the charts' series. */
export const datasetPalette = (index: number): string => SERIES[index % MAX_SHOWN] ?? SERIES[0];

/** One value of the address: `0:train`, or with a slice `0:train:carrier_UA`. */
export function formatDataset({ artifact, name, slice }: DatasetRef): string {
  const whole = `${artifact}:${encodeURIComponent(name)}`;
  return slice === null ? whole : `${whole}:${slice}`;
}

/** Reads {@link formatDataset} back; null for what is none. */
export function parseDataset(text: string): DatasetRef | null {
  const [artifact, name, ...slice] = text.split(":");
  if (!artifact || !/^\d+$/.test(artifact) || !name) {
    return null;
  }
  try {
    const key = slice.length ? slice.join(":") : null;
    return { artifact: Number(artifact), name: decodeURIComponent(name), slice: key };
  } catch {
    return null;
  }
}

/**
 * What is shown: what the address names, as far as it is there; else the data sets called `split`, or the first ones.
 *
 * @param listings by artifact; undefined where they are not known yet
 */
export function chooseDatasets(
  listings: readonly (Listing | undefined)[],
  named: readonly string[],
  split: string,
): DatasetRef[] {
  const there = ({ artifact, name, slice }: DatasetRef) =>
    listings[artifact]?.datasets.some(
      (each) => each.name === name && (slice === null || Object.hasOwn(each.slices, slice)),
    );
  const chosen = named.map(parseDataset).filter((each): each is DatasetRef => each !== null && there(each) === true);
  if (chosen.length) {
    return chosen.slice(0, MAX_SHOWN);
  }
  return listings
    .flatMap((listing, artifact) => {
      const names = listing?.datasets.map(({ name }) => name) ?? [];
      const wanted = names.includes(split) ? [split] : names.slice(0, FIRST);
      return wanted.map((name) => ({ artifact, name, slice: null }));
    })
    .slice(0, MAX_SHOWN);
}

/** The names of the data sets that an artifact is shown by at first, as its task has told them; none where it has not. */
export function expectedNames({ splits }: Record<string, unknown>): string[] {
  return Array.isArray(splits) ? splits.filter((name) => typeof name === "string").slice(0, FIRST) : [];
}

/** The name of a data set among others: what tells it apart from those. */
export function labelOf(dataset: DatasetRef, ref: ArtifactRef, several: boolean): string {
  const name = dataset.slice === null ? dataset.name : `${dataset.name} · ${dataset.slice}`;
  return several ? `${name} · ${shortRun(ref.run_id)}` : name;
}
