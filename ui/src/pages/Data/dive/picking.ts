/** Which rows lie at a place, or within an outline. */

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

/** 1 for each row within an outline: a polygon, of two places the rectangle between them. */
export function within(layout: Layout, outline: readonly Place[]): Uint8Array {
  const inside = new Uint8Array(layout.x.length);
  const corners = outline.length === 2 ? rectangle(outline) : outline;
  const xs = corners.map(([x]) => x);
  const ys = corners.map(([, y]) => y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const [top, bottom] = [Math.min(...ys), Math.max(...ys)];
  for (let row = 0; row < inside.length; row++) {
    const x = layout.x[row] as number;
    const y = layout.y[row] as number;
    if (x >= left && x <= right && y >= top && y <= bottom && (outline.length === 2 || isInside(corners, x, y))) {
      inside[row] = 1;
    }
  }
  return inside;
}

function rectangle([first, last]: readonly Place[]): Place[] {
  const [[x, y], [toX, toY]] = [first ?? [0, 0], last ?? [0, 0]];
  return [
    [x, y],
    [toX, y],
    [toX, toY],
    [x, toY],
  ];
}

/** Even-odd rule: how often a ray to the right crosses the outline. */
function isInside(corners: readonly Place[], x: number, y: number): boolean {
  let inside = false;
  let before = corners.at(-1) as Place;
  for (const corner of corners) {
    if (corner[1] > y !== before[1] > y) {
      const crossing = corner[0] + ((y - corner[1]) / (before[1] - corner[1])) * (before[0] - corner[0]);
      inside = x < crossing ? !inside : inside;
    }
    before = corner;
  }
  return inside;
}
