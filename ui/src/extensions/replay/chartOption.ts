/** The chart of a back-test: the policies' curves over one another, and below them a lane for each. */

import {
  type ChartTheme,
  type EChartsCoreOption,
  formatNumber,
  formatTime,
  intervalInWords,
  metricLabel,
  type TooltipLine,
  tooltipLines,
} from "airflow-hops";
import type { CustomSeriesRenderItemAPI, CustomSeriesRenderItemParams } from "echarts";
import {
  decisionsOf,
  type Period,
  type Policy,
  periodsOf,
  type Report,
  retrainingAt,
  servedBy,
  valueAtEnd,
} from "src/extensions/replay/report";

const CURVES_TOP = 34;
const CURVES = 260;
const LANES_TOP = CURVES_TOP + CURVES + 16;
const LANE = 26;
/** Letters of a name in the legend. */
const LONGEST = 40;

/** What all parts of the chart are drawn from. */
interface Drawing {
  report: Report;
  outcomes: readonly Policy[];
  periods: readonly Period[];
  colors: ReadonlyMap<string, string>;
  theme: ChartTheme;
  /** A time as its day in the user's zone. */
  day: (at: number | string) => string;
}

interface Hovered {
  seriesName: string;
  dataIndex: number;
  data?: { lines?: TooltipLine[] };
}

/** What a mark of the chart leads to. */
export interface Mark {
  policy: string;
  at: string;
}

export const isMark = (data: unknown): data is Mark =>
  typeof data === "object" && data !== null && "policy" in data && "at" in data;

export const heightFor = (policies: number): string => `${LANES_TOP + LANE * policies + 30}px`;

export function chartOption(
  report: Report,
  colors: ReadonlyMap<string, string>,
  theme: ChartTheme,
  zone: string,
  narrow: boolean,
): EChartsCoreOption {
  const periods = periodsOf(report);
  const outcomes = report.best ? [...report.policies, report.best] : report.policies;
  const day = (at: number | string) => formatTime(at, zone).slice(0, 10);
  const drawing = { report, outcomes, periods, colors, theme, day };
  const left = narrow ? 96 : 190;
  const time = { type: "time", min: periods[0]?.start, max: periods.at(-1)?.end };
  const names = outcomes.map(({ name }) => name);
  const short = (value: number) => formatNumber(value, 3);
  return {
    animation: false,
    grid: [
      { left, right: 16, top: CURVES_TOP, height: CURVES, tooltip: { trigger: "axis" } },
      { left, right: 16, top: LANES_TOP, height: LANE * outcomes.length },
    ],
    legend: { type: "scroll", left: 0, data: names, formatter: shortened },
    axisPointer: { link: [{ xAxisIndex: "all" }] },
    tooltip: {
      trigger: "item",
      confine: true,
      formatter: (event: Hovered | Hovered[]) => {
        const lines = Array.isArray(event) ? periodLines(drawing, event) : event.data?.lines;
        return lines ? tooltipLines(theme, lines) : "";
      },
    },
    xAxis: [
      { ...time, axisLabel: { show: false } },
      { ...time, gridIndex: 1, axisLabel: { formatter: day } },
    ],
    yAxis: [
      {
        type: "value",
        scale: true,
        name: metricLabel(report.metric),
        nameLocation: "middle",
        nameGap: 46,
        axisLabel: { formatter: short },
      },
      {
        type: "category",
        gridIndex: 1,
        inverse: true,
        data: names,
        axisLabel: { width: left - 12, overflow: "truncate", interval: 0 },
      },
    ],
    series: outcomes.flatMap((policy, lane) => [
      curve(drawing, policy),
      served(drawing, policy, lane),
      decided(drawing, policy, lane),
    ]),
  };
}

const shortened = (name: string): string => (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);

function curve({ report, periods, colors, theme }: Drawing, policy: Policy): object {
  const color = colors.get(policy.name);
  const isBest = policy === report.best;
  const marks = report.ticks.flatMap((at, place) => {
    const retraining = retrainingAt(policy, at);
    const value = valueAtEnd(policy, place);
    const itemStyle = { color: retraining?.promoted ? color : theme.background, borderColor: color, borderWidth: 2 };
    return retraining && value !== null
      ? [{ coord: [periods[place]?.end, value], policy: policy.name, at: retraining.at, itemStyle }]
      : [];
  });
  return {
    type: "line",
    name: policy.name,
    color,
    showSymbol: policy.values.length < 2,
    z: isBest ? 3 : 2,
    lineStyle: { width: 2, type: isBest ? "dashed" : "solid" },
    emphasis: { focus: "series" },
    data: periods.map(({ start, end }, place) => [(start + end) / 2, policy.values[place] ?? null]),
    markPoint: { symbol: "circle", symbolSize: 8, label: { show: false }, data: isBest ? [] : marks },
  };
}

const inLane = { xAxisIndex: 1, yAxisIndex: 1 };

/** Bars of a lane: which candidate served when. */
function served({ report, periods, colors, day }: Drawing, policy: Policy, lane: number): object {
  const color = colors.get(policy.name);
  return {
    ...inLane,
    type: "custom",
    name: policy.name,
    color,
    encode: { x: [0, 1], y: 2 },
    renderItem: ({ dataIndex }: CustomSeriesRenderItemParams, api: CustomSeriesRenderItemAPI) => {
      const [from = 0, y = 0] = api.coord([api.value(0), api.value(2)]);
      const [to = 0] = api.coord([api.value(1), api.value(2)]);
      const shape = { x: from, y: y - 6, width: Math.max(to - from - 1, 1), height: 12 };
      return { type: "rect", shape, style: { fill: color, opacity: dataIndex % 2 ? 0.45 : 0.25 } };
    },
    data: servedBy(policy, periods).map(({ start, end, candidate }) => ({
      value: [start, end, lane],
      lines: [
        { label: `${policy.name}: candidate ${candidate} serves`, strong: true },
        { label: "from", value: `${day(start)} to ${day(end)}` },
        { label: "trained on", value: trainedOn(report, candidate, day) },
      ],
    })),
  };
}

/** Marks of a lane: the decisions, large where a candidate was trained, and filled where it served. */
function decided({ colors, theme, day }: Drawing, policy: Policy, lane: number): object {
  const color = colors.get(policy.name);
  return {
    ...inLane,
    type: "scatter",
    name: policy.name,
    color,
    z: 4,
    clip: false,
    data: decisionsOf(policy).map(({ at, requested, why, reason }) => {
      const retraining = requested ? retrainingAt(policy, at) : undefined;
      const fill = retraining?.promoted ? color : theme.background;
      return {
        value: [Date.parse(at), lane],
        policy: policy.name,
        at,
        symbolSize: retraining ? 11 : 5,
        itemStyle: retraining
          ? { color: fill, borderColor: color, borderWidth: 2 }
          : { color: requested ? color : theme.muted, opacity: 0.7 },
        lines: [
          { label: `${policy.name}, ${day(at)}`, strong: true },
          {
            label: retraining
              ? outcomeInWords(retraining)
              : requested
                ? "requested at the end"
                : `not retrained: ${why}`,
          },
          { label: reason, muted: true },
        ],
      };
    }),
  };
}

/** `retrained, promoted: gain 0.004 (0.001 to 0.007)`. */
export function outcomeInWords({ promoted, gain, false_alarm }: Policy["retrainings"][number]): string {
  const gained = gain ? `gain ${intervalInWords(gain, 3)}` : "no row came after it";
  return `retrained, ${promoted ? "promoted" : "rejected"}: ${gained}${false_alarm ? ", a false alarm" : ""}`;
}

/** `2013-01-01 to 2013-04-02`. */
export function trainedOn({ candidates }: Report, number: number, day: Drawing["day"]): string {
  const found = candidates[number];
  return found ? `${day(found.start)} to ${day(found.end)}` : "–";
}

/** A period: the values of the policies that are shown, and which of them retrained at its start. */
function periodLines(drawing: Drawing, points: readonly Hovered[]): TooltipLine[] {
  const { report, periods, colors, day } = drawing;
  const place = points[0]?.dataIndex ?? 0;
  const { start, end } = periods[place] ?? { start: 0, end: 0 };
  const shown = drawing.outcomes.filter(({ name }) => points.some(({ seriesName }) => seriesName === name));
  return [
    { label: `${day(start)} to ${day(end)}`, value: `${formatNumber(report.rows[place])} rows`, strong: true },
    ...shown.map(({ name, values }) => ({ label: name, color: colors.get(name), value: formatNumber(values[place]) })),
    ...shown.flatMap((policy) => {
      const retraining = retrainingAt(policy, report.ticks[place - 1] ?? "");
      return retraining ? [{ label: `${policy.name} ${outcomeInWords(retraining)}`, muted: true }] : [];
    }),
  ];
}
