import { useMemo } from "react";
import {
  Chart,
  type ChartTheme,
  type EChartsCoreOption,
  SERIES,
  tooltipLines,
  useChartTheme,
} from "src/components/chart";
import { formatNumber, plural } from "src/format";
import { type CalibrationBin, calibrationOf, type Figures } from "src/pages/Models/figures";
import { type Evaluated, nameOf, versionPalette } from "src/pages/Models/versions";

type Point = CalibrationBin & { name: string; value: [number, number] };

const TITLES: Readonly<Record<string, [x: string, y: string]>> = {
  multiclass: ["probability of the most likely class", "share that is correct"],
  regression: ["predicted", "observed"],
};
const BINARY: [string, string] = ["predicted probability", "share of positives"];

interface Props {
  candidate: Figures;
  champion: Figures | null;
  /** Of the candidate; and of the champion, null where there was none. */
  versions: readonly [Evaluated, number | null];
  problem: string | null;
  label: string | null;
}

/** What came of predictions, bin by bin, beside what was predicted: on the diagonal where the two agree. */
export function CalibrationChart({ candidate, champion, versions, problem, label }: Props) {
  const theme = useChartTheme();
  const [version, other] = versions;
  const option = useMemo(
    () =>
      calibrationOption([calibrationOf(candidate), calibrationOf(champion)], [version, other], problem, label, theme),
    [candidate, champion, version, other, problem, label, theme],
  );
  return <Chart option={option} label="Calibration: observed against predicted" height="260px" />;
}

function calibrationOption(
  bins: readonly CalibrationBin[][],
  versions: readonly Evaluated[],
  problem: string | null,
  label: string | null,
  theme: ChartTheme,
): EChartsCoreOption {
  const [x, y] = TITLES[problem ?? "binary"] ?? BINARY;
  const unit = problem === "regression" && label !== null ? ` ${label}` : "";
  const ends = rangeOf(bins.flat(), problem);
  const isNumber = problem === "regression";
  const axisLabel = { formatter: short, showMinLabel: !isNumber, showMaxLabel: !isNumber };
  const axis = { type: "value", min: ends[0], max: ends[1], nameLocation: "middle", axisLabel };
  return {
    grid: { left: 62, right: 16, top: 28, bottom: 42 },
    legend: { left: 0, data: versions.filter((_, index) => bins[index]?.length).map(nameOf) },
    xAxis: { ...axis, name: x + unit, nameGap: 26 },
    yAxis: { ...axis, name: y + unit, nameGap: 46 },
    tooltip: {
      trigger: "item",
      confine: true,
      formatter: ({ data }: { data: Point }) =>
        tooltipLines(theme, [
          { label: `${data.name} · ${plural(data.rows, "row")}`, strong: true },
          { label: x, value: formatNumber(data.predicted) },
          { label: y, value: formatNumber(data.observed) },
        ]),
    },
    series: [
      {
        type: "line",
        data: [
          [ends[0], ends[0]],
          [ends[1], ends[1]],
        ],
        symbol: "none",
        silent: true,
        tooltip: { show: false },
        lineStyle: { color: theme.muted, type: "dashed", width: 1 },
      },
      ...bins.flatMap((points, index) => {
        const version = versions[index] ?? null;
        if (points.length === 0) {
          return [];
        }
        const place = version === null ? -1 : SERIES.indexOf(versionPalette(version) as (typeof SERIES)[number]);
        const name = nameOf(version);
        return {
          type: "line",
          name,
          color: version === null ? theme.muted : (theme.series[place] ?? theme.series[index]),
          symbolSize: 7,
          data: points.map((bin): Point => ({ ...bin, name, value: [bin.predicted, bin.observed] })),
        };
      }),
    ],
  };
}

const short = (value: number) => formatNumber(value, 3);

/** What both axes show: 0 to 1 of probabilities, else what there is, and a bit more. */
function rangeOf(bins: readonly CalibrationBin[], problem: string | null): [number, number] {
  if (problem !== "regression") {
    return [0, 1];
  }
  const values = bins.flatMap(({ predicted, observed }) => [predicted, observed]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - margin, high + margin];
}
