/** What the plot shows and how, as the address says. */

import { type Filter, filtersIn, formatFilter } from "src/pages/Data/dive/filters";
import type { Place } from "src/pages/Data/dive/picking";
import type { ScaleKind } from "src/pages/Data/dive/scale";

/** How rows are placed. Names of features are empty for none. */
export interface Placement {
  x: string;
  y: string;
  xScale: ScaleKind;
  yScale: ScaleKind;
  columns: string;
  columnBins: number;
  rows: string;
  rowBins: number;
  color: string;
  jitter: number;
  filters: Filter[];
}

/** Features that are shown where the address names none. */
export type Defaults = Pick<Placement, "x" | "y" | "color">;

const SCALES: readonly ScaleKind[] = ["linear", "log"];
export const DEFAULT_BINS = 5;
export const DEFAULT_JITTER = 0.8;

const scaleIn = (text: string | null): ScaleKind => SCALES.find((scale) => scale === text) ?? "linear";

/** A number of the address, within bounds; `initial` where there is none. */
export function numberIn(text: string | null, initial: number, low: number, high: number): number {
  const value = text === null || text === "" ? Number.NaN : Number(text);
  return Number.isFinite(value) ? Math.min(Math.max(value, low), high) : initial;
}

export function readPlacement(query: URLSearchParams, defaults: Defaults): Placement {
  const bins = (name: string) => Math.round(numberIn(query.get(name), DEFAULT_BINS, 2, 20));
  return {
    x: query.get("x") ?? defaults.x,
    y: query.get("y") ?? defaults.y,
    xScale: scaleIn(query.get("xscale")),
    yScale: scaleIn(query.get("yscale")),
    columns: query.get("facetx") ?? "",
    columnBins: bins("binsx"),
    rows: query.get("facety") ?? "",
    rowBins: bins("binsy"),
    color: query.get("color") ?? defaults.color,
    jitter: numberIn(query.get("jitter"), DEFAULT_JITTER, 0, 1),
    filters: filtersIn(query),
  };
}

function writePlacement(placement: Placement): URLSearchParams {
  const query = new URLSearchParams({
    x: placement.x,
    y: placement.y,
    xscale: placement.xScale,
    yscale: placement.yScale,
    facetx: placement.columns,
    binsx: String(placement.columnBins),
    facety: placement.rows,
    binsy: String(placement.rowBins),
    color: placement.color,
    jitter: String(placement.jitter),
  });
  for (const filter of placement.filters) {
    query.append("filter", formatFilter(filter));
  }
  return query;
}

/** A box by two of its corners, and how rows were placed when it was drawn: so it means the same rows when they are placed otherwise. */
export interface Selection {
  placement: Placement;
  aspect: number;
  outline: readonly Place[];
}

const DIGITS = 5;

/** As one value of the address. */
export function formatSelection({ placement, aspect, outline }: Selection): string {
  const query = writePlacement(placement);
  query.set("aspect", aspect.toPrecision(DIGITS));
  query.set("in", outline.map((place) => place.map((part) => Number(part.toFixed(DIGITS))).join(",")).join(" "));
  return query.toString();
}

export function parseSelection(text: string): Selection | null {
  if (text === "") {
    return null;
  }
  const query = new URLSearchParams(text);
  const outline = (query.get("in") ?? "").split(" ").map((place) => place.split(",").map(Number));
  const whole = outline.length === 2 && outline.every((place) => place.length === 2 && place.every(Number.isFinite));
  return whole
    ? {
        placement: readPlacement(query, { x: "", y: "", color: "" }),
        aspect: numberIn(query.get("aspect"), 1, 0.01, 100),
        outline: outline as unknown as Place[],
      }
    : null;
}

/** The features that a placement needs. */
export function featuresOf(placement: Placement): string[] {
  const { x, y, columns, rows, color, filters } = placement;
  return [...new Set([x, y, columns, rows, color, ...filters.map(({ name }) => name)])].filter((name) => name !== "");
}
