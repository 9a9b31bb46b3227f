import { Box, HStack, IconButton, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { LuMaximize2, LuMinimize2 } from "react-icons/lu";
import { Chart, type EChartsCoreOption, useChartTheme } from "src/components/chart";
import { formatDuration, formatNumber, formatTime } from "src/format";
import { useTimezone } from "src/host";
import { metricHeading } from "src/pages/Models/words";
import { type Figure, isValidation, pointsOf, smooth, type XAxis } from "src/pages/Runs/curves";

/** A run whose curves are drawn. */
export interface CurveRun {
  run_id: string;
  label: string;
  start_time: number;
}

export interface CurveLook {
  axis: XAxis;
  /** Weight of the past in the smoothed line, 0 to 1. */
  smoothing: number;
  log: boolean;
}

const AXIS_NAMES: Record<XAxis, string> = { step: "step", relative: "time since the start", time: "" };

interface Props {
  figure: Figure;
  runs: readonly CurveRun[];
  look: CurveLook;
  large?: boolean;
  onToggle?: () => void;
}

/** One figure of several runs over each other: a colour a run, validation dashed. */
export function CurveChart({ figure, runs, look, large = false, onToggle }: Props) {
  const theme = useChartTheme();
  const zone = useTimezone();
  const name = metricHeading(figure.name);
  const hasBoth =
    figure.curves.some(({ metric }) => isValidation(metric)) &&
    figure.curves.some(({ metric }) => !isValidation(metric));
  const option = useMemo<EChartsCoreOption>(() => {
    const series = figure.curves.flatMap((curve) => {
      const place = runs.findIndex(({ run_id }) => run_id === curve.run_id);
      const run = runs[place];
      if (!run) {
        return [];
      }
      const color = theme.series[place % theme.series.length];
      const validation = isValidation(curve.metric);
      const points = pointsOf(curve, look.axis, run.start_time).map(
        ([x, y]) => [x, look.log && y !== null && y <= 0 ? null : y] as [number, number | null],
      );
      const line = {
        type: "line",
        name: runs.length > 1 ? `${run.label}${validation ? " · validation" : ""}` : curve.metric,
        showSymbol: points.length < 30,
        symbolSize: points.length < 2 ? 8 : 4,
        lineStyle: { color, width: 1.75, type: validation ? "dashed" : "solid" },
        itemStyle: { color },
        emphasis: { disabled: true },
      };
      if (look.smoothing === 0) {
        return [{ ...line, data: points }];
      }
      return [
        {
          ...line,
          data: points,
          silent: true,
          showSymbol: false,
          tooltip: { show: false },
          lineStyle: { ...line.lineStyle, opacity: 0.25, width: 1 },
        },
        { ...line, showSymbol: false, data: smooth(points, look.smoothing) },
      ];
    });
    const formatX: Record<XAxis, (x: number) => string> = {
      step: (x) => `${AXIS_NAMES.step} ${formatNumber(x)}`,
      relative: (x) => `${formatDuration(x)} after the start`,
      time: (x) => formatTime(x, zone),
    };
    return {
      grid: { left: 56, right: 16, top: 12, bottom: large ? 76 : 34 },
      xAxis: {
        type: look.axis === "time" ? "time" : "value",
        scale: true,
        minInterval: look.axis === "step" ? 1 : undefined,
        name: AXIS_NAMES[look.axis],
        nameLocation: "middle",
        nameGap: 22,
        splitLine: { show: false },
        // The tooltip's heading.
        axisPointer: { label: { formatter: ({ value }: { value: number }) => formatX[look.axis](value) } },
        axisLabel: {
          formatter:
            look.axis === "relative"
              ? (value: number) => formatDuration(value)
              : look.axis === "time"
                ? (value: number) => formatTime(value, zone).slice(5, 16)
                : undefined,
        },
      },
      yAxis: {
        type: look.log ? "log" : "value",
        scale: true,
        axisLabel: { formatter: (value: number) => formatNumber(value, 3) },
      },
      dataZoom: [
        { type: "inside", filterMode: "none", zoomOnMouseWheel: "shift", moveOnMouseWheel: false },
        ...(large ? [{ type: "slider", filterMode: "none", height: 22, bottom: 8 }] : []),
      ],
      tooltip: {
        trigger: "axis",
        order: "valueDesc",
        confine: true,
        axisPointer: { label: { show: false } },
        valueFormatter: (value: unknown) => formatNumber(typeof value === "number" ? value : null, 5),
      },
      series,
    };
  }, [figure, runs, look, large, theme, zone]);
  return (
    <Box borderWidth={1} borderRadius="md" p={2} gridColumn={large ? "1 / -1" : undefined}>
      <HStack mb={1} px={1} gap={3}>
        <Text fontSize="sm" fontWeight="semibold" truncate>
          {name}
        </Text>
        {hasBoth && (
          <Text fontSize="xs" color="fg.muted">
            — training &nbsp; ┄ validation
          </Text>
        )}
        {onToggle && (
          <IconButton
            size="2xs"
            variant="ghost"
            marginInlineStart="auto"
            aria-label={large ? `Shrink ${name}` : `Enlarge ${name}`}
            onClick={onToggle}
          >
            {large ? <LuMinimize2 /> : <LuMaximize2 />}
          </IconButton>
        )}
      </HStack>
      <Chart
        option={option}
        height={large ? "380px" : "200px"}
        label={`${figure.name} of ${runs.length} ${runs.length === 1 ? "run" : "runs"} by ${look.axis}`}
      />
    </Box>
  );
}
