import { Chart, type EChartsCoreOption, Empty, formatNumber, Part, useChartTheme } from "airflow-hops";
import { useMemo } from "react";
import { bestSoFar, type Trial } from "src/extensions/experiments/trials";

/** Points beyond which they are drawn without their own shapes. */
const MANY = 2000;

interface Props {
  trials: readonly Trial[];
  metric: number;
  name: string;
  direction: string | undefined;
}

/** The values of the complete trials, and the best so far as steps. */
export function BestSoFar({ trials, metric, name, direction }: Props) {
  const theme = useChartTheme();
  const best = useMemo(() => bestSoFar(trials, metric, direction), [trials, metric, direction]);
  const option = useMemo<EChartsCoreOption>(
    () => ({
      grid: { left: 60, right: 16, top: 12, bottom: 40 },
      xAxis: { type: "value", name: "trial", nameLocation: "middle", nameGap: 24, minInterval: 1, scale: true },
      yAxis: { type: "value", scale: true, axisLabel: { formatter: (value: number) => formatNumber(value, 3) } },
      tooltip: {
        trigger: "axis",
        confine: true,
        valueFormatter: (value: unknown) => formatNumber(typeof value === "number" ? value : null, 5),
      },
      series: [
        {
          type: "scatter",
          name,
          data: trials.flatMap(({ number, values }) =>
            typeof values[metric] === "number" ? [[number, values[metric]]] : [],
          ),
          symbolSize: best.length > MANY ? 2 : 5,
          itemStyle: { color: theme.muted, opacity: 0.6 },
          large: best.length > MANY,
        },
        {
          type: "line",
          name: "best so far",
          step: "end",
          data: best,
          showSymbol: false,
          lineStyle: { color: theme.series[0], width: 2 },
          itemStyle: { color: theme.series[0] },
          emphasis: { disabled: true },
        },
      ],
    }),
    [trials, best, metric, name, theme],
  );
  return (
    <Part boxed title="Best so far" note={`${name}, to ${direction ?? "maximize"}; a point for each complete trial`}>
      {best.length === 0 ? (
        <Empty title="No trial is complete yet" />
      ) : (
        <Chart
          option={option}
          height="260px"
          label={`Best ${name} so far over ${best.length} complete trials: ${formatNumber(best.at(-1)?.[1])}`}
        />
      )}
    </Part>
  );
}
