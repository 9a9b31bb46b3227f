import {
  api,
  Chart,
  type EChartsCoreOption,
  formatNumber,
  LoadingBox,
  Part,
  plural,
  QueryView,
  type Schemas,
  type TooltipLine,
  tooltipLines,
  useChartTheme,
} from "airflow-hops";
import { useMemo } from "react";
import { addressOf, pollMs } from "src/extensions/experiments/queries";
import type { StudyDetail } from "src/extensions/experiments/trials";

type Curves = Schemas["TrialCurve"][];

/** What trials reported while they ran, a line each; pruned ones end in a cross. */
export function IntermediateValues({ dagId, study }: { dagId: string; study: StudyDetail }) {
  const query = api.useQuery("get", "/api/dags/{dag_id}/studies/{task_id}/{instance}/curves", addressOf(dagId, study), {
    refetchInterval: pollMs(study),
  });
  return (
    <QueryView query={query} loading={<LoadingBox />}>
      {({ entries: curves, total_entries }) =>
        curves.length > 0 && (
          <Part
            boxed
            title="Intermediate values"
            note={`${study.metrics[0]} by step; pruned trials are orange and end in a cross, the best one is wide${
              total_entries > curves.length
                ? `. ${plural(total_entries - curves.length, "more trial")}, the older ones, are not drawn`
                : ""
            }`}
          >
            <Lines curves={curves} metric={study.metrics[0] ?? ""} best={study.best ?? undefined} />
          </Part>
        )
      }
    </QueryView>
  );
}

function Lines({ curves, metric, best }: { curves: Curves; metric: string; best: number | undefined }) {
  const theme = useChartTheme();
  const option = useMemo<EChartsCoreOption>(() => {
    const looks: Record<string, { color: string | undefined; opacity: number }> = {
      pruned: { color: theme.series[1], opacity: 0.8 },
      running: { color: theme.series[2], opacity: 1 },
    };
    const pruned = curves.filter(({ state }) => state === "pruned");
    return {
      grid: { left: 60, right: 16, top: 12, bottom: 40 },
      xAxis: { type: "value", name: "step", nameLocation: "middle", nameGap: 24, minInterval: 1, scale: true },
      yAxis: { type: "value", scale: true, axisLabel: { formatter: (value: number) => formatNumber(value, 3) } },
      tooltip: {
        trigger: "item",
        confine: true,
        formatter: (event: { seriesName?: string; data?: [number, number]; name?: string }) => {
          const [step, value] = event.data ?? [];
          const lines: TooltipLine[] = [
            { label: event.seriesName ?? "", strong: true },
            { label: `${metric} at step ${formatNumber(step)}`, value: formatNumber(value) },
          ];
          return tooltipLines(theme, lines);
        },
      },
      series: [
        ...[...curves].reverse().map(({ number, state, steps, values }) => {
          const { color, opacity } = looks[state] ?? { color: theme.muted, opacity: 0.4 };
          const drawn =
            number === best ? { color: theme.series[0], opacity: 1, width: 3 } : { color, opacity, width: 1.2 };
          return {
            type: "line",
            name: `trial ${number}, ${state}`,
            data: steps.map((step, place) => [step, values[place] ?? null]),
            showSymbol: steps.length < 2,
            symbolSize: 5,
            lineStyle: drawn,
            itemStyle: { color: drawn.color },
            z: number === best ? 5 : 2,
          };
        }),
        {
          type: "scatter",
          name: "pruned",
          silent: true,
          symbol: "path://M0,0L10,10M10,0L0,10",
          symbolSize: 8,
          data: pruned.map(({ steps, values }) => [steps.at(-1), values.at(-1)]),
          itemStyle: { color: theme.series[1], borderColor: theme.series[1], borderWidth: 2 },
        },
      ],
    };
  }, [curves, metric, best, theme]);
  return (
    <Chart
      option={option}
      height="260px"
      label={`${metric} by step of ${plural(curves.length, "trial")}, ${
        curves.filter(({ state }) => state === "pruned").length
      } of them pruned`}
    />
  );
}
