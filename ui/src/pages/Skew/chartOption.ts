/** The option of the large chart: a feature over time, decisions and versions above it, window sizes below. */

import type { EChartsCoreOption } from "src/components/chart/echarts";
import { timeTicks } from "src/components/chart/timeTicks";
import { type TooltipLine, tooltipLines } from "src/components/chart/tooltip";
import { formatCount, formatNumber, formatPercent, formatPValue, formatTime } from "src/format";
import { changeLines, decisionSeries, failureSeries, versionSeries } from "src/pages/Skew/chartMarks";
import { padded, type Shown } from "src/pages/Skew/chartShown";
import { type Check, timesOf } from "src/pages/Skew/timeline";
import { changeInWords } from "src/pages/Skew/words";
import { isSameTask } from "src/routes";

const LEAST_P = 1e-12;
const SHOWN_P = [1, 1e-3, 1e-6, 1e-9, LEAST_P];
// The three stand above one another: none may shrink for its labels.
const GRID = { left: 70, right: 40, outerBoundsMode: "none" };

/** The option; a `data` item of the series `points` and `rows` has the comparison's index as its third value. */
export function chartOption(shown: Shown): EChartsCoreOption {
  const { checks, axis, zone, theme, row } = shown;
  const times = timesOf(checks, axis);
  const values = valuesOf(shown);
  const limit = limitOf(shown);
  const hidden = { show: false };
  // A line joins its points as they come; an older window may have been compared later.
  const inTime = checks.map((_, index) => index).sort((one, other) => (times[one] ?? 0) - (times[other] ?? 0));
  const [from, to] = [padded(times, -1), padded(times, 1)];
  const ticks = timeTicks(from, to, zone);
  const xAxis = (index: number, labels: boolean) => ({
    gridIndex: index,
    type: "time",
    min: from,
    max: to,
    // Points and bars of one comparison stand above one another.
    containShape: false,
    axisLabel: labels ? { customValues: ticks.values, formatter: ticks.label, hideOverlap: true } : hidden,
    axisTick: labels ? { customValues: ticks.values } : hidden,
    axisLine: { show: labels },
    splitLine: hidden,
    axisPointer: { label: hidden },
  });
  const tooltip = (index: number) => tooltipLines(theme, checkLines(shown, index));
  return {
    animation: false,
    grid: [
      { ...GRID, top: 8, height: 44 },
      { ...GRID, top: 60, bottom: 98 },
      { ...GRID, height: 44, bottom: 28 },
    ],
    axisPointer: { link: [{ xAxisIndex: "all" }] },
    tooltip: { trigger: "item", confine: true },
    xAxis: [xAxis(0, false), xAxis(1, false), xAxis(2, true)],
    yAxis: [
      {
        gridIndex: 0,
        type: "category",
        data: ["Versions", "Retraining"],
        axisLine: hidden,
        axisTick: hidden,
        axisLabel: { fontSize: 11 },
      },
      { gridIndex: 1, ...yAxisOf(shown) },
      {
        gridIndex: 2,
        ...rowsScale(checks),
        name: "Rows",
        nameLocation: "middle",
        nameGap: 46,
        axisLabel: { formatter: formatCount },
        splitLine: hidden,
      },
    ],
    series: [
      decisionSeries(shown, times),
      versionSeries(shown),
      failureSeries(shown),
      {
        name: "points",
        type: "line",
        xAxisIndex: 1,
        yAxisIndex: 1,
        connectNulls: false,
        z: 3,
        lineStyle: { color: theme.series[0], width: 2 },
        data: inTime.map((index) => pointOf(shown, index, times[index] ?? 0, values[index] ?? null)),
        tooltip: { formatter: ({ dataIndex }: { dataIndex: number }) => tooltip(inTime[dataIndex] ?? 0) },
        markLine: changeLines(shown),
      },
      ...limitSeries(shown, inTime, times, limit),
      {
        name: "rows",
        type: "bar",
        xAxisIndex: 2,
        yAxisIndex: 2,
        barMaxWidth: 18,
        barMinWidth: 3,
        itemStyle: { color: theme.color("gray.solid", 0.55) },
        data: checks.map((check, index) => ({
          value: [times[index], check.rows_current, index],
          itemStyle: check.verdict === "insufficient" ? { color: theme.color("warning.solid") } : undefined,
        })),
        tooltip: { formatter: ({ dataIndex }: { dataIndex: number }) => tooltip(dataIndex) },
      },
    ],
    aria: { enabled: true, label: { description: `${row.name} over ${checks.length} comparisons` } },
  };
}

/** Windows of very different sizes are shown by their orders of magnitude. */
function rowsScale(checks: readonly Check[]): object {
  const sizes = checks.flatMap(({ rows_current: rows }) => (rows ? [rows] : []));
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  return most > 10 * least
    ? { type: "log", splitNumber: 3, min: 10 ** Math.floor(Math.log10(least) - 0.3) }
    : { type: "value", splitNumber: 1, min: 0 };
}

function valuesOf({ row, points, measured }: Shown): (number | null)[] {
  switch (measured) {
    case "p":
      return points.map((point) => (typeof point?.p_value === "number" ? Math.max(point.p_value, LEAST_P) : null));
    case "missing":
      return points.map((point) => point?.missing_current ?? null);
    default:
      return row.scores;
  }
}

function limitOf({ row, points, measured, alpha, checks }: Shown): (number | null)[] {
  switch (measured) {
    case "p":
      return checks.map(() => alpha);
    case "missing":
      return points.map((point) => point?.missing_reference ?? null);
    default:
      return row.thresholds;
  }
}

export const LIMITS: Record<Shown["measured"], string> = {
  score: "threshold",
  p: "significance level (alpha)",
  missing: "reference",
};

function yAxisOf({ measured }: Shown): object {
  const name = { nameLocation: "middle", nameGap: 46 };
  switch (measured) {
    case "p":
      // The smaller, the surer: what is up is drifted, as with scores.
      return {
        ...name,
        type: "log",
        name: "p-value",
        inverse: true,
        min: LEAST_P,
        max: 1,
        axisLabel: {
          customValues: SHOWN_P,
          formatter: (value: number) => (value === 1 ? "1" : `1e${Math.round(Math.log10(value))}`),
        },
        splitLine: { show: false },
      };
    case "missing":
      return {
        ...name,
        type: "value",
        name: "Missing",
        min: 0,
        axisLabel: { formatter: (v: number) => formatPercent(v) },
      };
    default:
      return { ...name, type: "value", name: "Distance", min: 0 };
  }
}

function pointOf({ row, checks, chosen, theme }: Shown, index: number, time: number, value: number | null): object {
  const check = checks[index];
  const isChosen = check !== undefined && chosen !== null && isSameTask(check, chosen);
  const known = check?.verdict === "insufficient" ? theme.muted : theme.series[0];
  const color = row.drifted[index] ? theme.color("orange.solid") : known;
  return {
    value: [time, value, index],
    symbol: check?.verdict === "insufficient" ? "emptyCircle" : "circle",
    symbolSize: isChosen ? 13 : 8,
    itemStyle: { color, borderColor: isChosen ? theme.text : theme.background, borderWidth: isChosen ? 2.5 : 1 },
  };
}

function limitSeries(
  { measured, theme }: Shown,
  inTime: readonly number[],
  times: readonly number[],
  limit: (number | null)[],
): object[] {
  const first = inTime[0];
  const last = inTime.at(-1);
  if (first === undefined || last === undefined) {
    return [];
  }
  const data = [
    [padded(times, -1), limit[first]],
    ...inTime.map((index) => [times[index], limit[index]]),
    [padded(times, 1), limit[last]],
  ];
  return [
    {
      name: "limit",
      type: "line",
      xAxisIndex: 1,
      yAxisIndex: 1,
      silent: true,
      symbol: "none",
      step: measured === "missing" ? false : "end",
      lineStyle: { color: theme.color("fg.muted"), type: "dashed", width: 1.25 },
      endLabel: { show: false },
      data,
    },
  ];
}

function checkLines({ row, checks, points, zone }: Shown, index: number): TooltipLine[] {
  const check = checks[index];
  const point = points[index];
  if (!check) {
    return [];
  }
  const change = point && row.drifted[index] ? changeInWords(point, check.problem) : null;
  const words = point?.state === "compared" ? change : point?.detail; // why there is no report
  const moment = check.window_end ? `Data until ${formatTime(check.window_end, zone)}` : formatTime(check.at, zone);
  return [
    { label: check.version === null ? moment : `${moment}, against v${check.version}` },
    { label: "Distance", value: formatNumber(row.scores[index]) },
    { label: "Threshold", value: formatNumber(row.thresholds[index]) },
    ...(point?.p_value === null || point === undefined
      ? []
      : [{ label: "Chance", value: formatPValue(point.p_value) }]),
    { label: "Rows", value: formatNumber(check.rows_current) },
    {
      label: check.verdict === "insufficient" ? "Too few rows" : row.drifted[index] ? "Drifted" : "Not drifted",
      muted: true,
    },
    ...(words ? [{ label: words, muted: true }] : []),
  ];
}
