import { useMemo } from "react";
import { Chart, type ChartTheme, type EChartsCoreOption, tooltipLines, useChartTheme } from "src/components/chart";
import { formatPercent, formatTime, intervalInWords, plural } from "src/format";
import { useTimezone } from "src/host";
import type { VersionPerformance } from "src/pages/Models/queries";
import { nameOf, versionPalette } from "src/pages/Models/versions";
import { metricLabel } from "src/pages/Models/words";

type Point = [at: number, value: number | null];

/** A metric of each version over time: measured with its interval, estimated dashed, and how complete labels are. */
export function PerformanceChart({ periods, metric }: { periods: readonly VersionPerformance[]; metric: string }) {
  const theme = useChartTheme();
  const zone = useTimezone();
  const option = useMemo(() => chartOption(periods, metric, theme, zone), [periods, metric, theme, zone]);
  const label = `${metricLabel(metric)} over time by version, measured and estimated, and the share of labelled predictions`;
  return <Chart option={option} label={label} height="340px" />;
}

function chartOption(
  periods: readonly VersionPerformance[],
  metric: string,
  theme: ChartTheme,
  zone: string,
): EChartsCoreOption {
  const versions = [...new Set(periods.map(({ version }) => version))];
  const middle = ({ start, end }: VersionPerformance) => (Date.parse(start) + Date.parse(end)) / 2;
  // Bars stand below the points of the same time.
  const time = { type: "time", containShape: false, min: Math.min(...periods.map(({ start }) => Date.parse(start))) };
  const last = { max: Math.max(...periods.map(({ end }) => Date.parse(end))) };
  return {
    animation: false,
    grid: [
      { left: 64, right: 16, top: 32, height: 190 },
      { left: 64, right: 16, top: 252, height: 56 },
    ],
    legend: { type: "scroll", left: 0, data: versions.flatMap((version) => [nameOf(version), estimateOf(version)]) },
    axisPointer: { link: [{ xAxisIndex: "all" }] },
    tooltip: {
      trigger: "axis",
      confine: true,
      formatter: (points: { value: Point }[]) => tooltip(points[0]?.value[0], periods, metric, middle, theme, zone),
    },
    xAxis: [
      { ...time, ...last, axisLabel: { show: false } },
      { ...time, ...last, gridIndex: 1, axisLabel: { formatter: (at: number) => formatTime(at, zone).slice(0, 10) } },
    ],
    yAxis: [
      { type: "value", scale: true, name: metricLabel(metric), nameLocation: "middle", nameGap: 46 },
      {
        type: "value",
        gridIndex: 1,
        min: 0,
        max: 1,
        interval: 0.5,
        axisLabel: { formatter: (share: number) => formatPercent(share) },
      },
    ],
    series: versions.flatMap((version) => {
      const mine = periods.filter((each) => each.version === version);
      const color = theme.color(`${versionPalette(version)}.solid`);
      const points = (value: (each: VersionPerformance) => number | null | undefined): Point[] =>
        mine.map((each) => [middle(each), value(each) ?? null]);
      const line = { type: "line", color, symbolSize: 5 };
      const band = { ...line, stack: `interval ${version}`, stackStrategy: "all", symbol: "none", silent: true };
      const width = ({ figures: { [metric]: figure } }: VersionPerformance) =>
        figure && (figure[2] ?? 0) - (figure[1] ?? 0);
      return [
        { ...band, data: points(({ figures }) => figures[metric]?.[1]), lineStyle: { opacity: 0 } },
        { ...band, data: points(width), lineStyle: { opacity: 0 }, areaStyle: { color, opacity: 0.18 } },
        { ...line, name: nameOf(version), data: points(({ figures }) => figures[metric]?.[0]) },
        {
          ...line,
          name: estimateOf(version),
          data: points(({ estimates }) => estimates[metric]?.[0]),
          symbol: "emptyCircle",
          lineStyle: { type: "dashed", width: 1.5 },
        },
        {
          type: "bar",
          name: nameOf(version),
          color,
          xAxisIndex: 1,
          yAxisIndex: 1,
          barMaxWidth: 14,
          data: points(({ labelled, rows }) => labelled / rows),
        },
      ];
    }),
  };
}

const estimateOf = (version: number): string => `${nameOf(version)} estimated`;

function tooltip(
  at: number | undefined,
  periods: readonly VersionPerformance[],
  metric: string,
  middle: (each: VersionPerformance) => number,
  theme: ChartTheme,
  zone: string,
): HTMLElement {
  const there = periods.filter((each) => middle(each) === at);
  const title = there[0] ? `${formatTime(there[0].start, zone)} to ${formatTime(there[0].end, zone)}` : "";
  return tooltipLines(theme, [
    { label: title, strong: true },
    ...there.flatMap(({ version, rows, labelled, figures: { [metric]: found }, estimates: { [metric]: guess } }) => [
      {
        label: `${nameOf(version)} · ${plural(rows, "prediction")}`,
        value: `${formatPercent(labelled / rows)} labelled`,
      },
      ...(found ? [{ label: "measured", value: intervalInWords(found) }] : []),
      ...(guess ? [{ label: "estimated", value: intervalInWords(guess) }] : []),
    ]),
  ]);
}
