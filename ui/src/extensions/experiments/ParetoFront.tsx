import {
  Chart,
  type EChartsCoreOption,
  formatNumber,
  Part,
  plural,
  type TooltipLine,
  tooltipLines,
  useChartTheme,
} from "airflow-hops";
import { useMemo } from "react";
import type { StudyDetail, Trial } from "src/extensions/experiments/trials";

/** Complete trials by the first two metrics; those that no other one beats in all metrics are joined by a line. */
export function ParetoFront({ study, trials }: { study: StudyDetail; trials: readonly Trial[] }) {
  const theme = useChartTheme();
  const [first = "", second = ""] = study.metrics;
  const option = useMemo<EChartsCoreOption>(() => {
    const front = new Set(study.pareto);
    const points = trials
      .filter(({ values }) => typeof values[0] === "number" && typeof values[1] === "number")
      .map(({ number, name, values }) => ({ number, name, value: [values[0] ?? 0, values[1] ?? 0] }));
    const best = points.filter(({ number }) => front.has(number)).sort((a, b) => (a.value[0] ?? 0) - (b.value[0] ?? 0));
    const axis = (name: string, nameGap: number) => ({
      type: "value",
      name,
      nameLocation: "middle",
      nameGap,
      scale: true,
      axisLabel: { formatter: (value: number) => formatNumber(value, 3) },
    });
    const lines = (data: { name: string; value: number[] }): TooltipLine[] => [
      { label: data.name, strong: true },
      ...[first, second].map((label, place) => ({ label, value: formatNumber(data.value[place]) })),
    ];
    return {
      grid: { left: 70, right: 16, top: 12, bottom: 44 },
      xAxis: axis(first, 26),
      yAxis: axis(second, 50),
      tooltip: {
        trigger: "item",
        confine: true,
        formatter: ({ data }: { data: { name: string; value: number[] } }) => tooltipLines(theme, lines(data)),
      },
      series: [
        {
          type: "scatter",
          data: points.filter(({ number }) => !front.has(number)),
          symbolSize: 6,
          itemStyle: { color: theme.muted, opacity: 0.6 },
        },
        {
          type: "line",
          data: best,
          // Only two metrics have a front that is a line.
          lineStyle: { color: theme.series[1], width: study.metrics.length === 2 ? 1.5 : 0 },
          itemStyle: { color: theme.series[1] },
          symbol: "circle",
          symbolSize: 9,
        },
      ],
    };
  }, [study, trials, first, second, theme]);
  return (
    <Part
      boxed
      title="Pareto front"
      note={`${first} (${study.directions[0]}) and ${second} (${study.directions[1]}): ${plural(
        study.pareto.length,
        "trial",
      )} that no other one beats in all metrics`}
    >
      <Chart
        option={option}
        height="260px"
        label={`${second} by ${first} of the complete trials, with the Pareto front: trials ${study.pareto.join(", ")}`}
      />
    </Part>
  );
}
