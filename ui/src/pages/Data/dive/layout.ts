/** Where each row lies in the plot: the unit square, y downwards, whatever its size in pixels. */

import type { Groups } from "src/pages/Data/dive/groups";
import type { Axis } from "src/pages/Data/dive/scale";

/** How rows are placed. */
interface Placing {
  x: Axis | null;
  y: Axis | null;
  /** The facets side by side, and those one above the other. */
  columns: Groups | null;
  rows: Groups | null;
  /** Share of a step by which equal values are spread, 0 to 1. */
  jitter: number;
  /** Stacks to pack rows into along a range of numbers. */
  bins: number;
  /** All rows, in the order in which they are stacked. */
  order: Uint32Array;
  /** 1 for each row that is placed. */
  shown: Uint8Array;
  /** Width by height: what is packed lies in squares. */
  aspect: number;
}

/** Places of rows. */
export interface Layout {
  /** By row; NaN where it is not placed. */
  x: Float32Array;
  y: Float32Array;
  columnCount: number;
  rowCount: number;
  /** Rows in each facet, from left to right, then downwards. */
  counts: Uint32Array;
  /** Width of the square that each row has where rows are packed, as a share of the plot's width; else 0. */
  pitch: number;
}

const GAP = 0.02;
const BAND_SHARE = 0.86;

/** Facet `index` of `count`: where it begins, and how long it is. */
export function facetSpan(index: number, count: number): [start: number, length: number] {
  const gap = count > 1 ? Math.min(GAP, 0.25 / count) : 0;
  const length = (1 - gap * (count - 1)) / count;
  return [index * (length + gap), length];
}

/** Places rows by their values on both axes, or packs them side by side along an axis that has no feature. */
export function layOut(placing: Placing): Layout {
  const size = placing.shown.length;
  const columnCount = Math.max(placing.columns?.labels.length ?? 1, 1);
  const rowCount = Math.max(placing.rows?.labels.length ?? 1, 1);
  const layout: Layout = {
    x: new Float32Array(size).fill(Number.NaN),
    y: new Float32Array(size).fill(Number.NaN),
    columnCount,
    rowCount,
    counts: new Uint32Array(columnCount * rowCount),
    pitch: 0,
  };
  for (let row = 0; row < size; row++) {
    if (placing.shown[row]) {
      const cell = cellOf(placing, columnCount, row);
      layout.counts[cell] = (layout.counts[cell] as number) + 1;
    }
  }
  if (placing.x && placing.y) {
    scatter(layout, placing, placing.x, placing.y);
  } else {
    pack(layout, placing);
  }
  return layout;
}

function cellOf({ columns, rows }: Placing, columnCount: number, row: number): number {
  return (rows ? (rows.of[row] as number) : 0) * columnCount + (columns ? (columns.of[row] as number) : 0);
}

function scatter(layout: Layout, placing: Placing, x: Axis, y: Axis): void {
  const { columnCount, rowCount } = layout;
  const across = Array.from({ length: columnCount }, (_, index) => facetSpan(index, columnCount));
  const down = Array.from({ length: rowCount }, (_, index) => facetSpan(index, rowCount));
  const spreadX = x.step * placing.jitter * BAND_SHARE;
  const spreadY = y.step * placing.jitter * BAND_SHARE;
  for (let row = 0; row < placing.shown.length; row++) {
    if (!placing.shown[row]) {
      continue;
    }
    const [left, width] = across[placing.columns?.of[row] ?? 0] ?? [0, 1];
    const [top, height] = down[placing.rows?.of[row] ?? 0] ?? [0, 1];
    const atX = (x.at[row] as number) + spreadX * noise(row * 2);
    const atY = (y.at[row] as number) + spreadY * noise(row * 2 + 1);
    layout.x[row] = left + width * atX;
    layout.y[row] = top + height * (1 - atY);
  }
}

/** The same number between -0.5 and 0.5 for the same row, unlike its neighbours'. */
function noise(seed: number): number {
  let hash = Math.imul(seed + 0x9e3779b9, 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash ^ (hash >>> 16)) >>> 0) / 4294967296 - 0.5;
}

function pack(layout: Layout, placing: Placing): void {
  const axis = placing.x ?? placing.y;
  const sideways = placing.x === null && placing.y !== null;
  const stacks = axis ? (axis.bands ? axis.bands.labels.length : placing.bins) : 1;
  const cells = layout.counts.length;
  const stackOf = new Uint32Array(placing.shown.length);
  const heights = new Uint32Array(cells * stacks);
  for (let row = 0; row < stackOf.length; row++) {
    if (placing.shown[row]) {
      const at = axis ? Math.min(Math.floor((axis.at[row] as number) * stacks), stacks - 1) : 0;
      const stack = cellOf(placing, layout.columnCount, row) * stacks + at;
      stackOf[row] = stack;
      heights[stack] = (heights[stack] as number) + 1;
    }
  }
  const [, cellWidth] = facetSpan(0, layout.columnCount);
  const [, cellHeight] = facetSpan(0, layout.rowCount);
  // In units of the plot's height; "along" is the axis that the stacks stand on.
  const along = (sideways ? cellHeight : cellWidth * placing.aspect) / stacks;
  const away = sideways ? cellWidth * placing.aspect : cellHeight;
  const room = along * (stacks > 1 ? BAND_SHARE : 1);
  const tallest = heights.reduce((most, height) => Math.max(most, height), 1);
  const perLine = fittingLine(room, away, tallest);
  const pitch = Math.min(room / perLine, away / Math.ceil(tallest / perLine));
  const step = room / perLine;
  layout.pitch = pitch / placing.aspect;
  const filled = new Uint32Array(heights.length);
  for (const row of placing.order) {
    if (!placing.shown[row]) {
      continue;
    }
    const stack = stackOf[row] as number;
    const place = filled[stack] as number;
    filled[stack] = place + 1;
    const cell = Math.floor(stack / stacks);
    const [left] = facetSpan(cell % layout.columnCount, layout.columnCount);
    const [top, height] = facetSpan(Math.floor(cell / layout.columnCount), layout.rowCount);
    const inLine = (stack % stacks) * along + (along - room) / 2 + ((place % perLine) + 0.5) * step;
    const line = (Math.floor(place / perLine) + 0.5) * pitch;
    layout.x[row] = left + (sideways ? line : inLine) / placing.aspect;
    layout.y[row] = sideways ? top + height - inLine : top + height - line;
  }
}

/** How many squares lie side by side, so that the tallest stack fills its room with the largest squares. */
function fittingLine(room: number, away: number, tallest: number): number {
  let perLine = Math.max(Math.floor(Math.sqrt((tallest * room) / away)), 1);
  const size = (count: number) => Math.min(room / count, away / Math.ceil(tallest / count));
  while (size(perLine + 1) > size(perLine)) {
    perLine += 1;
  }
  return perLine;
}
