/** How some rows differ from all of them. */

import { type Column, factsOf, isMissing } from "src/pages/Data/dive/columns";

/** A feature of the selection and of all rows that are shown. */
export interface Difference {
  column: Column;
  /** The value whose share differs most, of a category; null of a number, whose means are compared. */
  value: number | null;
  /** Mean, or share of the value. */
  selected: number;
  all: number;
  /** Difference in standard deviations of all; of a share, of whether a row has the value. */
  effect: number;
}

const MOST_VALUES = 1_000;

/** The features by how much the selected rows differ, the most different first. Columns of ids are left out. */
export function differences(columns: Iterable<Column>, selected: Uint8Array, shown: Uint8Array): Difference[] {
  const found: Difference[] = [];
  for (const column of columns) {
    if (column.role === "category" && column.words.length > MOST_VALUES) {
      continue;
    }
    const difference =
      column.role === "category" ? ofShares(column, selected, shown) : ofMeans(column, selected, shown);
    if (difference && Number.isFinite(difference.effect)) {
      found.push(difference);
    }
  }
  return found.sort((a, b) => Math.abs(b.effect) - Math.abs(a.effect));
}

function ofMeans(column: Column, selected: Uint8Array, shown: Uint8Array): Difference | null {
  const chosen = { count: 0, sum: 0 };
  const all = { count: 0, sum: 0, squares: 0 };
  const { mean } = factsOf(column);
  for (let row = 0; row < shown.length; row++) {
    const value = column.values[row] as number;
    if (shown[row] && !isMissing(column, value)) {
      // Less the mean, so that the squares of times keep their digits.
      const off = value - mean;
      all.count += 1;
      all.sum += off;
      all.squares += off * off;
      if (selected[row]) {
        chosen.count += 1;
        chosen.sum += off;
      }
    }
  }
  if (chosen.count === 0) {
    return null;
  }
  const meanOff = all.sum / all.count;
  const deviation = Math.sqrt(Math.max(all.squares / all.count - meanOff ** 2, 0));
  const chosenOff = chosen.sum / chosen.count;
  const effect = deviation > 0 ? (chosenOff - meanOff) / deviation : 0;
  return { column, value: null, selected: mean + chosenOff, all: mean + meanOff, effect };
}

function ofShares(column: Column, selected: Uint8Array, shown: Uint8Array): Difference | null {
  // The last is of missing values, whose index is -1.
  const places = column.words.length + 1;
  const chosen = new Uint32Array(places);
  const all = new Uint32Array(places);
  let chosenCount = 0;
  let allCount = 0;
  for (let row = 0; row < shown.length; row++) {
    if (shown[row]) {
      const place = ((column.values[row] as number) + places) % places;
      all[place] = (all[place] as number) + 1;
      allCount += 1;
      if (selected[row]) {
        chosen[place] = (chosen[place] as number) + 1;
        chosenCount += 1;
      }
    }
  }
  let most: Difference | null = null;
  for (let place = 0; place < places && chosenCount > 0; place++) {
    const share = (all[place] as number) / allCount;
    const chosenShare = (chosen[place] as number) / chosenCount;
    const deviation = Math.sqrt(share * (1 - share));
    const effect = deviation > 0 ? (chosenShare - share) / deviation : 0;
    if (most === null || Math.abs(effect) > Math.abs(most.effect)) {
      const value = place === places - 1 ? -1 : place;
      most = { column, value, selected: chosenShare, all: share, effect };
    }
  }
  return most;
}
