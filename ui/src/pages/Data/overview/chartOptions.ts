/** The charts of one feature as ECharts takes them. */

import type { EChartsCoreOption } from "src/components/chart/echarts";
import type { ChartTheme } from "src/components/chart/theme";
import { tooltipLines } from "src/components/chart/tooltip";
import { formatCount, formatNumber, formatPercent } from "src/format";
import { edgesOf, type Side, sharesIn, valueCount, valuesOf } from "src/pages/Data/overview/details";

interface Heights {
  log: boolean;
  counts: boolean;
}

type Format = (value: number) => string;

const MOST_VALUES = 20;
const LEGEND_HEIGHT = 36;

function frame(theme: ChartTheme, sides: readonly Side[]): EChartsCoreOption {
  return {
    color: sides.map(({ dataset }) => theme.series[dataset.index] ?? theme.text),
    legend: { show: sides.length > 1, type: "scroll" },
    grid: { left: 8, right: 20, top: sides.length > 1 ? LEGEND_HEIGHT : 12, bottom: 8, containLabel: true },
  };
}

function heightAxis({ log, counts }: Heights, least: number) {
  const formatter = (value: number) => (counts ? formatCount(value) : `${formatNumber(value * 100, 3)}%`);
  return log
    ? { type: "log", min: 10 ** Math.floor(Math.log10(least)), axisLabel: { formatter } }
    : { type: "value", axisLabel: { formatter } };
}

/** A logarithm has no zero: nothing is drawn there. */
const leastOf = (values: readonly number[]): number => Math.min(...values.filter((value) => value > 0), 1);

/** Steps over common buckets, read off each data set's distribution function. */
export function histogramOption(
  sides: readonly Side[],
  theme: ChartTheme,
  format: Format,
  style: Heights & { integers: boolean; buckets: number },
): EChartsCoreOption | null {
  const curves = sides.flatMap(({ detail }) => (detail.curve ? [detail.curve] : []));
  if (curves.length === 0) {
    return null;
  }
  const edges = edgesOf(curves, style.integers, style.buckets);
  const heights = sides.map(({ detail }) => {
    const shares = detail.curve ? sharesIn(detail.curve, edges) : edges.slice(1).map(() => 0);
    return style.counts ? shares.map((share) => share * valueCount(detail)) : shares;
  });
  const least = leastOf(heights.flat());
  const inWords = (value: number) => (style.counts ? formatCount(value) : formatPercent(value));
  const [low, high] = [edges[0] ?? 0, edges.at(-1) ?? 1];
  return {
    ...frame(theme, sides),
    tooltip: {
      trigger: "axis",
      axisPointer: { type: "line" },
      formatter: (points: { dataIndex: number }[]) => {
        const at = Math.min(points[0]?.dataIndex ?? 0, edges.length - 2);
        const [from, to] = [edges[at] ?? 0, edges[at + 1] ?? 0];
        const range = style.integers && to - from === 1 ? format(from + 0.5) : `${format(from)} – ${format(to)}`;
        return said(theme, range, sides, (side) => inWords(heights[side]?.[at] ?? 0));
      },
    },
    xAxis: {
      type: "value",
      min: low,
      max: high,
      // The ends are no round numbers.
      axisLabel: { formatter: (value: number) => format(value), showMinLabel: false, showMaxLabel: false },
    },
    yAxis: heightAxis(style, least),
    series: sides.map(({ dataset }, side) => {
      const values = heights[side] ?? [];
      const drawn = values.map((value) => (style.log && value <= 0 ? null : value));
      return {
        name: dataset.label,
        type: "line",
        step: "end",
        symbol: "none",
        lineStyle: { width: 1.75 },
        areaStyle: { opacity: sides.length > 1 ? 0.12 : 0.4, origin: "start" },
        data: edges.map((edge, index) => [edge, drawn[Math.min(index, drawn.length - 1)]]),
      };
    }),
  };
}

/** The share of the values up to each. */
export function cumulativeOption(sides: readonly Side[], theme: ChartTheme, format: Format): EChartsCoreOption | null {
  if (!sides.some(({ detail }) => detail.curve)) {
    return null;
  }
  return {
    ...frame(theme, sides),
    tooltip: {
      trigger: "item",
      formatter: ({ seriesName, value }: { seriesName: string; value: [number, number] }) =>
        tooltipLines(theme, [
          { label: `up to ${format(value[0])}`, strong: true },
          { label: seriesName, value: formatPercent(value[1]) },
        ]),
    },
    xAxis: { type: "value", scale: true, axisLabel: { formatter: (value: number) => format(value) } },
    yAxis: { type: "value", max: 1, axisLabel: { formatter: (value: number) => `${value * 100}%` } },
    series: sides.map(({ dataset, detail }) => ({
      name: dataset.label,
      type: "line",
      symbol: "circle",
      symbolSize: 3,
      lineStyle: { width: 1.75 },
      data: detail.curve?.values.map((value, index) => [value, detail.curve?.shares[index]]) ?? [],
    })),
  };
}

/** A bar for each of the most frequent values; or, cumulated, the share of the most frequent 1, 2, … values. */
export function ranksOption(
  sides: readonly Side[],
  theme: ChartTheme,
  style: Heights & { cumulative: boolean },
): EChartsCoreOption | null {
  const all = valuesOf(sides);
  const share = (side: number, count: number | null) => {
    const total = sides[side] ? valueCount(sides[side].detail) : 0;
    return (count ?? 0) / (total || 1);
  };
  if (style.cumulative) {
    return {
      ...frame(theme, sides),
      tooltip: { trigger: "axis", valueFormatter: (value: number) => formatPercent(value) },
      xAxis: { type: "value", min: 1, minInterval: 1, name: "values", nameLocation: "middle", nameGap: 26 },
      yAxis: { type: "value", max: 1, axisLabel: { formatter: (value: number) => `${value * 100}%` } },
      series: sides.map(({ dataset, detail }, side) => {
        let sum = 0;
        const data = detail.values.map(([, count], rank) => {
          sum += share(side, count);
          return [rank + 1, Math.min(sum, 1)];
        });
        return { name: dataset.label, type: "line", symbolSize: 4, data };
      }),
    };
  }
  const values = all.slice(0, MOST_VALUES);
  const height = (side: number, count: number | null) => (style.counts ? (count ?? 0) : share(side, count));
  const heights = sides.map((_, side) => values.map(({ counts }) => height(side, counts[side] ?? null)));
  return {
    ...frame(theme, sides),
    tooltip: {
      trigger: "axis",
      axisPointer: { type: "shadow" },
      formatter: (points: { dataIndex: number }[]) => {
        const found = values[points[0]?.dataIndex ?? 0];
        return said(theme, found?.value || "(empty)", sides, (side) => {
          const count = found?.counts[side] ?? null;
          return `${formatNumber(count ?? 0)} · ${formatPercent(share(side, count))}`;
        });
      },
    },
    xAxis: heightAxis(style, leastOf(heights.flat())),
    yAxis: {
      type: "category",
      inverse: true,
      data: values.map(({ value }) => (value === "" ? "(empty)" : value)),
      axisLabel: { width: 140, overflow: "truncate", interval: 0 },
      axisTick: { show: false },
    },
    series: sides.map(({ dataset }, side) => ({
      name: dataset.label,
      type: "bar",
      barMaxWidth: 14,
      data: heights[side]?.map((value) => (style.log && value <= 0 ? null : value)),
    })),
  };
}

/** A line a data set, in its colour. */
function said(theme: ChartTheme, title: string, sides: readonly Side[], value: (side: number) => string): HTMLElement {
  return tooltipLines(theme, [
    { label: title, strong: true },
    ...sides.map(({ dataset }, side) => ({
      label: dataset.label,
      value: value(side),
      color: theme.series[dataset.index],
    })),
  ]);
}
