import { useMemo } from "react";
import type { Schemas } from "src/api/client";
import { Chart, type ChartTheme, type EChartsCoreOption, tooltipLines, useChartTheme } from "src/components/chart";
import { formatNumber, formatPercent } from "src/format";

const MOST_VALUES = 20;

/** Both sides over the same buckets, as shares of their rows. */
export function Histogram({ found }: { found: Schemas["FeatureComparison"] }) {
  const theme = useChartTheme();
  const option = useMemo(() => histogramOption(found, theme), [found, theme]);
  return (
    <Chart
      option={option}
      height="240px"
      label={`Histograms of ${found.name}, reference and current, as shares of the rows with a value`}
    />
  );
}

function histogramOption(found: Schemas["FeatureComparison"], theme: ChartTheme): EChartsCoreOption {
  const isNumeric = found.histogram[0]?.length === 4;
  const buckets = found.histogram.slice(0, isNumeric ? undefined : MOST_VALUES);
  const labels = buckets.map((bucket) =>
    bucket.length === 4
      ? `${formatNumber(bucket[0], 3)} to ${formatNumber(bucket[1], 3)}`
      : String(bucket[0]) || "(empty)",
  );
  const [reference, current] = [-2, -1].map((side) => buckets.map((bucket) => bucket.at(side) as number | null));
  // Of vectors it is their norms.
  const isVector = found.measure === "maximum_mean_discrepancy";
  return {
    animation: false,
    grid: { left: 8, right: 8, top: 28, bottom: isVector ? 22 : 4, containLabel: true },
    legend: { data: ["Reference", "Current"] },
    tooltip: {
      trigger: "axis",
      axisPointer: { type: "shadow" },
      confine: true,
      formatter: (items: { dataIndex: number }[]) => {
        const index = items[0]?.dataIndex ?? 0;
        return tooltipLines(theme, [
          { label: labels[index] ?? "" },
          { label: "Reference", value: formatPercent(reference?.[index]) },
          { label: "Current", value: formatPercent(current?.[index]) },
        ]);
      },
    },
    xAxis: {
      type: "category",
      data: isNumeric ? buckets.map(([low]) => formatNumber(Number(low), 3)) : labels,
      axisLabel: { hideOverlap: true, width: 70, overflow: "truncate" },
      axisTick: { show: false },
      ...(isVector && { name: "norm of the vector", nameLocation: "middle", nameGap: 26 }),
    },
    yAxis: { type: "value", splitNumber: 3, axisLabel: { formatter: (value: number) => formatPercent(value) } },
    series: [
      bars("Reference", reference ?? [], theme.series[0] ?? "", isNumeric),
      bars("Current", current ?? [], theme.series[1] ?? "", isNumeric),
    ],
  };
}

/** Numbers overlap, for their shapes; values stand side by side. */
function bars(name: string, data: (number | null)[], color: string, isNumeric: boolean): object {
  return {
    name,
    type: "bar",
    data,
    barGap: isNumeric ? "-100%" : "0%",
    barCategoryGap: isNumeric ? "4%" : "25%",
    itemStyle: { color, opacity: isNumeric ? 0.55 : 0.85 },
  };
}
