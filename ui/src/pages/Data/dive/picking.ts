/** Which rows lie at a place, or within a box. */

import type { Layout } from "src/pages/Data/dive/layout";
import type { Projection } from "src/pages/Data/dive/raster";

/** A place in the plot's unit square. */
export type Place = readonly [x: number, y: number];

/** The row that is drawn nearest to a pixel, or null where none is within so many pixels. All rows are looked at: 0.2 ms. */
export function nearest(layout: Layout, projection: Projection, x: number, y: number, within: number): number | null {
  let found: number | null = null;
  let closest = within * within;
  const { kx, ky, dx, dy } = projection;
  for (let row = 0; row < layout.x.length; row++) {
    const offX = (layout.x[row] as number) * kx + dx - x;
    const offY = (layout.y[row] as number) * ky + dy - y;
    const away = offX * offX + offY * offY;
    // The last of equals is drawn on top.
    if (away <= closest) {
      closest = away;
      found = row;
    }
  }
  return found;
}

/** 1 for each row within a box, given by two of its corners. */
export function within(layout: Layout, [first = [0, 0], last = [0, 0]]: readonly Place[]): Uint8Array {
  const [left, right] = [Math.min(first[0], last[0]), Math.max(first[0], last[0])];
  const [top, bottom] = [Math.min(first[1], last[1]), Math.max(first[1], last[1])];
  return Uint8Array.from(layout.x, (x, row) => {
    const y = layout.y[row] as number;
    return Number(x >= left && x <= right && y >= top && y <= bottom);
  });
}
