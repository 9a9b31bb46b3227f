import { Box, HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { Choice } from "src/components/Choice";
import { Chart } from "src/components/chart/Chart";
import type { EChartsCoreOption } from "src/components/chart/echarts";
import { useChartTheme } from "src/components/chart/theme";
import { Toggle } from "src/components/Toggle";
import { formatNumber, plural } from "src/format";
import { useQueryFlag, useQueryParam } from "src/hooks/useQueryState";
import { axisKeys, axisOf, type RunAxis } from "src/pages/Runs/axes";
import { asNumber, type Compared, figureOf, isLoss, labelOf, type Names } from "src/pages/Runs/figures";

interface Props {
  runs: readonly Compared[];
  names: Names;
  noun?: string;
  /** Whether less of a metric is better. */
  isLower?: (metric: string) => boolean;
  onOpen: (id: string) => void;
}

/** A point a run, by any two of parameters and metrics; a click opens it. */
export function RunScatter({ runs, names, noun = "run", isLower = isLoss, onOpen }: Props) {
  const theme = useChartTheme();
  const param = useMemo(() => mostVaried(names, runs), [names, runs]);
  const [first, second] = names.metrics;
  const [x, setX] = useQueryParam("sx", param ? `params.${param}` : second ? `metrics.${second}` : "duration");
  const [y, setY] = useQueryParam("sy", first ? `metrics.${first}` : "duration");
  const [colorBy, setColorBy] = useQueryParam("color", first ?? "");
  const [log, setLog] = useQueryFlag("log");
  const option = useMemo<EChartsCoreOption>(() => {
    const across = axisOf(x, runs);
    const up = axisOf(y, runs);
    const points = runs
      .map((run) => ({
        name: labelOf(run),
        id: run.run_id,
        value: [placed(run, across), placed(run, up), run.metrics[colorBy] ?? null],
      }))
      .filter(({ value }) => value[0] !== null && value[1] !== null);
    const known = points.map(({ value }) => value[2]).filter((value) => typeof value === "number");
    const colors = [theme.series[0], theme.series[1]];
    return {
      grid: { left: 70, right: 120, top: 16, bottom: 44 },
      xAxis: described(across, false, 28),
      yAxis: described(up, log, 52),
      visualMap: {
        show: known.length > 0,
        dimension: 2,
        min: Math.min(...known),
        max: Math.max(...known) || 1,
        right: 0,
        top: 10,
        itemHeight: 160,
        precision: 3,
        text: [colorBy, ""],
        inRange: { color: isLower(colorBy) ? colors : colors.reverse() },
        outOfRange: { color: theme.muted },
      },
      dataZoom: [
        { type: "inside", xAxisIndex: 0, filterMode: "none", zoomOnMouseWheel: "shift" },
        { type: "inside", yAxisIndex: 0, filterMode: "none", zoomOnMouseWheel: "shift" },
      ],
      tooltip: {
        trigger: "item",
        confine: true,
        valueFormatter: (value: unknown) => formatNumber(typeof value === "number" ? value : null),
      },
      series: {
        type: "scatter",
        symbolSize: runs.length > 300 ? 6 : 10,
        data: points,
        dimensions: [across.label, up.label, colorBy],
        encode: { x: 0, y: 1, tooltip: [0, 1, 2] },
        itemStyle: { opacity: 0.75 },
      },
    };
  }, [runs, x, y, colorBy, log, isLower, theme]);
  const keys = axisKeys(names);
  return (
    <Box borderWidth={1} borderRadius="md" p={3}>
      <HStack gap={4} wrap="wrap" mb={2}>
        <Choice label="X" value={x} values={keys} onChange={setX} />
        <Choice label="Y" value={y} values={keys} onChange={setY} />
        <Choice
          label="Colour"
          value={colorBy}
          values={names.metrics.map((value) => ({ value }))}
          onChange={setColorBy}
        />
        <Toggle label="Log y" checked={log} onChange={setLog} />
        <Text fontSize="xs" color="fg.muted" marginInlineStart="auto">
          {plural(runs.length, noun)}. Click a point to open the {noun}.
        </Text>
      </HStack>
      <Chart
        option={option}
        height="340px"
        label={`${plural(runs.length, noun)}: ${y} by ${x}`}
        handlers={{
          click: (event) => {
            const { data } = event as { data?: { id?: string } };
            if (data?.id) {
              onOpen(data.id);
            }
          },
        }}
      />
    </Box>
  );
}

/** The numeric parameter with the most different values. */
function mostVaried(names: Names, runs: readonly Compared[]): string | undefined {
  const count = (name: string) => new Set(runs.map((run) => run.params[name])).size;
  return names.varying
    .filter((name) => axisOf(`params.${name}`, runs).type !== "category")
    .sort((a, b) => count(b) - count(a))[0];
}

function placed(run: Compared, axis: RunAxis): number | string | null {
  const value = figureOf(run, axis.key);
  return axis.type === "category" ? value : asNumber(value);
}

function described(axis: RunAxis, log: boolean, nameGap: number): object {
  return {
    name: axis.label,
    nameLocation: "middle",
    nameGap,
    type: log && axis.type === "value" ? "log" : axis.type,
    data: axis.type === "category" ? axis.words : undefined,
    scale: true,
    axisLabel: { formatter: axis.type === "category" ? undefined : (value: number) => formatNumber(value, 3) },
  };
}
