import { Box, SimpleGrid, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { Chart, type ChartTheme, type EChartsCoreOption, useChartTheme } from "src/components/chart";
import { formatDuration, formatNumber, formatTime } from "src/format";
import { useTimezone } from "src/host";
import type { Decision, LiveModel } from "src/pages/Models/queries";
import { versionPalette } from "src/pages/Models/versions";
import { titleOf } from "src/pages/Models/words";

type Series = NonNullable<LiveModel["series"]>;
type Points = [number, number | null][];
const HEIGHT = "180px";

interface Props {
  series: Series;
  minutes: number;
  decisions: readonly Decision[];
}

/** Request rate, errors and latencies of each version over the last minutes, with the decisions of that time. */
export function LiveCharts({ series, minutes, decisions }: Props) {
  const theme = useChartTheme();
  const zone = useTimezone();
  const charts = useMemo(() => {
    const frame = frameOf(series, minutes, zone);
    return [
      ["Requests per second", "Requests per second by version", rateOption(series, frame, theme, decisions)],
      [
        "Errors per second · failed solid, refused because of an error in the request dotted",
        "Failed and refused requests per second by version",
        errorOption(series, frame, theme),
      ],
      [
        "Latency in ms, logarithmic · p99 solid, p50 dotted",
        "Latency by version, median and 99th percentile",
        latencyOption(series, frame, theme),
      ],
    ] as const;
  }, [series, minutes, decisions, theme, zone]);
  if (series.versions.every(({ requests }) => requests.every((count) => count === 0))) {
    return (
      <Text fontSize="sm" color="fg.muted">
        No request has come in the last {formatDuration(60 * minutes)}.
      </Text>
    );
  }
  return (
    <SimpleGrid columns={{ base: 1, lg: 3 }} gap={4}>
      {charts.map(([title, label, option]) => (
        <Box key={label} minW={0}>
          <Text fontSize="sm" color="fg.muted" mb={1}>
            {title}
          </Text>
          <Chart option={option} label={label} height={HEIGHT} />
        </Box>
      ))}
    </SimpleGrid>
  );
}

interface Frame {
  from: number;
  to: number;
  zone: string;
}

function frameOf(series: Series, minutes: number, zone: string): Frame {
  const to = (series.at.at(-1) ?? Date.now() / 1000) * 1000;
  return { from: to - minutes * 60_000, to, zone };
}

function base({ from, to, zone }: Frame) {
  return {
    animation: false,
    grid: { left: 8, right: 12, top: 28, bottom: 4, containLabel: true },
    legend: { type: "scroll", left: 0 },
    tooltip: {
      trigger: "axis",
      axisPointer: { label: { show: false } },
      valueFormatter: (value: unknown) => formatNumber(typeof value === "number" ? value : null, 3),
    },
    xAxis: {
      type: "time",
      min: from,
      max: to,
      axisLabel: { formatter: (at: number) => formatTime(at, zone).slice(11, 16) },
      axisPointer: { label: { formatter: ({ value }: { value: number }) => formatTime(value, zone) } },
    },
    yAxis: {
      type: "value",
      min: 0,
      splitNumber: 3,
      axisLabel: { formatter: (value: number) => formatNumber(value, 3) },
    },
  };
}

function points(series: Series, values: readonly (number | null)[], scale?: (value: number, index: number) => number) {
  return series.at.map((at, index): [number, number | null] => {
    const value = values[index] ?? null;
    return [at * 1000, value === null ? null : (scale?.(value, index) ?? value)];
  });
}

function line(version: number, name: string, data: Points, theme: ChartTheme) {
  const color = theme.color(`${versionPalette(version)}.solid`);
  return {
    type: "line",
    name,
    data,
    showSymbol: data.filter(([, value]) => value !== null).length < 3,
    lineStyle: { width: 1.5 },
    itemStyle: { color },
    color,
  };
}

const dotted = (series: ReturnType<typeof line>) => ({ ...series, lineStyle: { width: 1.5, type: "dotted" } });

/** Vertical lines where what serves was decided anew. */
function marksOf(decisions: readonly Decision[], { from, to }: Frame, theme: ChartTheme) {
  const data = decisions
    .filter(({ at, traffic }) => traffic && Date.parse(at) >= from && Date.parse(at) <= to)
    .map((decision) => ({ xAxis: Date.parse(decision.at), name: titleOf(decision) }));
  return {
    symbol: "none",
    silent: false,
    data,
    lineStyle: { color: theme.muted, type: "dashed" },
    label: { show: false },
    emphasis: { label: { show: true, formatter: "{b}", position: "insideEndTop", color: theme.text } },
  };
}

const perSecond =
  ({ seconds }: Series) =>
  (value: number, index: number) =>
    value / Math.max(seconds[index] ?? 0, 0.001);

function rateOption(
  series: Series,
  frame: Frame,
  theme: ChartTheme,
  decisions: readonly Decision[],
): EChartsCoreOption {
  const rate = perSecond(series);
  return {
    ...base(frame),
    series: series.versions.map(({ version, requests }, index) => ({
      ...line(version, `v${version}`, points(series, requests, rate), theme),
      stack: "requests",
      areaStyle: { opacity: 0.25 },
      markLine: index === 0 ? marksOf(decisions, frame, theme) : undefined,
    })),
  };
}

function errorOption(series: Series, frame: Frame, theme: ChartTheme): EChartsCoreOption {
  const rate = perSecond(series);
  return {
    ...base(frame),
    series: series.versions.flatMap(({ version, errors, client_errors }) => [
      line(version, `v${version}`, points(series, errors, rate), theme),
      ...(client_errors.some((refused) => refused > 0)
        ? [dotted(line(version, `v${version} refused`, points(series, client_errors, rate), theme))]
        : []),
    ]),
  };
}

function latencyOption(series: Series, frame: Frame, theme: ChartTheme): EChartsCoreOption {
  const frameOptions = base(frame);
  return {
    ...frameOptions,
    yAxis: { ...frameOptions.yAxis, type: "log", min: undefined },
    series: series.versions.flatMap(({ version, latency_ms_p50, latency_ms_p99 }) => [
      line(version, `v${version} p99`, points(series, latency_ms_p99), theme),
      dotted(line(version, `v${version} p50`, points(series, latency_ms_p50), theme)),
    ]),
  };
}
