import { useMemo } from "react";
import { type ChartTheme, useChartTheme } from "src/components/chart/theme";
import { useTimezone } from "src/host";
import { type Coloring, colorBy, orderByColor } from "src/pages/Data/dive/color";
import type { Column } from "src/pages/Data/dive/columns";
import { passing } from "src/pages/Data/dive/filters";
import { type Groups, groupBy } from "src/pages/Data/dive/groups";
import { type Layout, layOut } from "src/pages/Data/dive/layout";
import { within } from "src/pages/Data/dive/picking";
import { type Axis, makeAxis } from "src/pages/Data/dive/scale";
import { featureIn, type Placement, parseSelection } from "src/pages/Data/dive/settings";

/** Stacks along a range of numbers, where the other axis has no feature. */
const STACKS = 48;

/** Rows with their places and colours. */
export interface Placed {
  layout: Layout;
  coloring: Coloring;
  x: Axis | null;
  y: Axis | null;
  columns: Groups | null;
  rows: Groups | null;
  /** 1 for each row that passes the filters. */
  shown: Uint8Array;
  shownCount: number;
}

type Columns = ReadonlyMap<string, Column>;

/** Places and colours rows; what has not changed is not made again. */
export function usePlaced(placement: Placement, all: Columns, size: number, aspect: number): Placed {
  const zone = useTimezone();
  const theme = useChartTheme();
  const xColumn = featureIn(all, placement.x);
  const yColumn = featureIn(all, placement.y);
  const colorColumn = featureIn(all, placement.color);
  const columnsColumn = featureIn(all, placement.columns);
  const rowsColumn = featureIn(all, placement.rows);
  const { xScale, yScale, columnBins, rowBins, jitter } = placement;
  const x = useMemo(() => xColumn && makeAxis(xColumn, xScale, zone), [xColumn, xScale, zone]);
  const y = useMemo(() => yColumn && makeAxis(yColumn, yScale, zone), [yColumn, yScale, zone]);
  const columns = useMemo(
    () => columnsColumn && groupBy(columnsColumn, columnBins, zone),
    [columnsColumn, columnBins, zone],
  );
  const rows = useMemo(() => rowsColumn && groupBy(rowsColumn, rowBins, zone), [rowsColumn, rowBins, zone]);
  const coloring = useMemo(() => colorBy(colorColumn, size, theme, zone), [colorColumn, size, theme, zone]);
  const order = useMemo(() => orderByColor(coloring), [coloring]);
  const filters = JSON.stringify(placement.filters.map((filter) => [filter, all.has(filter.name)]));
  // biome-ignore lint/correctness/useExhaustiveDependencies: filters that say the same are the same; so are columns
  const shown = useMemo(() => passing(size, all, placement.filters), [size, filters]);
  // Places hang on the plot's proportions only where rows are packed.
  const proportions = x && y ? 1 : aspect;
  const layout = useMemo(
    () => layOut({ x, y, columns, rows, jitter, bins: STACKS, order, shown, aspect: proportions }),
    [x, y, columns, rows, jitter, order, shown, proportions],
  );
  const shownCount = useMemo(() => shown.reduce((sum, each) => sum + each, 0), [shown]);
  return { layout, coloring, x, y, columns, rows, shown, shownCount };
}

/** 1 for each row that a selection of the address means; null where there is none, or its features have not come. */
export function useSelected(text: string, all: Columns, size: number): Uint8Array | null {
  const zone = useTimezone();
  const theme = useChartTheme();
  return useMemo(() => selected(text, all, size, theme, zone), [text, all, size, theme, zone]);
}

function selected(text: string, all: Columns, size: number, theme: ChartTheme, zone: string): Uint8Array | null {
  const selection = parseSelection(text);
  if (!selection || size === 0) {
    return null;
  }
  const { placement, aspect, outline } = selection;
  const axis = (name: string, scale: Placement["xScale"]) => {
    const column = featureIn(all, name);
    return column && makeAxis(column, scale, zone);
  };
  const groups = (name: string, bins: number) => {
    const column = featureIn(all, name);
    return column && groupBy(column, bins, zone);
  };
  const layout = layOut({
    x: axis(placement.x, placement.xScale),
    y: axis(placement.y, placement.yScale),
    columns: groups(placement.columns, placement.columnBins),
    rows: groups(placement.rows, placement.rowBins),
    jitter: placement.jitter,
    bins: STACKS,
    order: orderByColor(colorBy(featureIn(all, placement.color), size, theme, zone)),
    shown: passing(size, all, placement.filters),
    aspect,
  });
  return within(layout, outline);
}
