import { Box, Button, HStack, Text } from "@chakra-ui/react";
import { useCallback, useMemo, useRef } from "react";
import { LuChevronDown } from "react-icons/lu";
import { CheckMenu } from "src/components/CheckMenu";
import { Choice } from "src/components/Choice";
import { Chart } from "src/components/chart/Chart";
import type { EChartsCoreOption, EChartsType } from "src/components/chart/echarts";
import { useChartTheme } from "src/components/chart/theme";
import { formatNumber, plural } from "src/format";
import { ticked, useQueryList, useQueryParam } from "src/hooks/useQueryState";
import { axisKeys, axisOf, type RunAxis } from "src/pages/Runs/axes";
import { type Brush, useBrushes } from "src/pages/Runs/brushes";
import { asNumber, type Compared, figureOf, isLoss, type Names } from "src/pages/Runs/figures";

/** Least distance of two axes. */
const AXIS_PX = 110;

const MOST_PARAMS = 6;
const MOST_METRICS = 2;

/** What ECharts says when a range of an axis is marked. */
interface AreaSelected {
  parallelAxisId?: string;
  intervals?: [number, number][];
}

/** A line a run through its parameters to its metrics; a range marked on an axis filters the table below. */
export function ParallelCoordinates({
  runs,
  names,
  noun = "run",
  isLower = isLoss,
}: {
  runs: readonly Compared[];
  names: Names;
  noun?: string;
  /** Whether less of a metric is better. */
  isLower?: (metric: string) => boolean;
}) {
  const theme = useChartTheme();
  const [chosen, setChosen] = useQueryList("axis");
  const [colorBy, setColorBy] = useQueryParam("color", names.metrics[0] ?? "");
  const { brushes, change } = useBrushes();
  const latest = useRef(brushes);
  latest.current = brushes;
  const usual = useMemo(
    () => [
      ...(names.varying.length ? names.varying : names.params).slice(0, MOST_PARAMS).map((name) => `params.${name}`),
      ...names.metrics.slice(0, MOST_METRICS).map((name) => `metrics.${name}`),
    ],
    [names],
  );
  const keys = chosen.length ? chosen : usual;
  const axes = useMemo(() => keys.map((key) => axisOf(key, runs)), [keys, runs]);
  const option = useMemo<EChartsCoreOption>(() => {
    const color = runs.map((run) => run.metrics[colorBy] ?? null);
    const known = color.filter((value) => value !== null);
    const better = [theme.series[0], theme.series[1]];
    return {
      parallel: { left: 60, right: 110, top: 44, bottom: 24, axisExpandable: axes.length > 12, axisExpandWidth: 90 },
      parallelAxis: axes.map((axis, dim) => ({
        dim,
        id: axis.key,
        name: axis.label,
        type: axis.type,
        data: axis.type === "category" ? axis.words : undefined,
        scale: true,
        nameTextStyle: { color: theme.text, fontWeight: 600 },
        nameTruncate: { maxWidth: 150 },
        axisLabel: {
          color: theme.text,
          textBorderColor: theme.background,
          textBorderWidth: 3,
          formatter: axis.type === "category" ? undefined : (value: number) => formatNumber(value, 3),
        },
        areaSelectStyle: {
          color: theme.color("brand.solid"),
          borderColor: theme.color("brand.solid"),
          opacity: 0.25,
          width: 18,
        },
      })),
      visualMap: {
        show: known.length > 0,
        type: "continuous",
        dimension: axes.length,
        min: Math.min(...known),
        max: Math.max(...known) || 1,
        right: 0,
        top: 40,
        itemHeight: 160,
        precision: 3,
        text: [colorBy, ""],
        inRange: { color: isLower(colorBy) ? better : [...better].reverse() },
      },
      tooltip: {},
      series: {
        type: "parallel",
        smooth: false,
        lineStyle: { width: 1.5, opacity: runs.length > 200 ? 0.35 : 0.7 },
        inactiveOpacity: 0.04,
        progressive: 0,
        data: runs.map((run, index) => [...axes.map((axis) => placed(run, axis)), color[index] ?? "-"]),
      },
    };
  }, [axes, runs, colorBy, isLower, theme]);

  const restore = useCallback(
    (chart: EChartsType) =>
      // The option is set after this.
      requestAnimationFrame(() => {
        for (const axis of axes) {
          const intervals = intervalsOn(axis, latest.current);
          if (intervals.length && !chart.isDisposed()) {
            chart.dispatchAction({ type: "axisAreaSelect", parallelAxisId: axis.key, intervals });
          }
        }
      }),
    [axes],
  );
  const marked = (event: unknown) => {
    const { parallelAxisId, intervals } = event as AreaSelected;
    const axis = axes.find(({ key }) => key === parallelAxisId);
    if (axis) {
      change((all) => [...all.filter(({ key }) => key !== axis.key), ...brushesOn(axis, intervals ?? [])]);
    }
  };
  return (
    <Box borderWidth={1} borderRadius="md" p={3}>
      <HStack gap={4} wrap="wrap">
        <CheckMenu
          trigger={
            <Button size="xs" variant="outline" colorPalette="gray">
              Axes: {keys.length}
              <LuChevronDown />
            </Button>
          }
          items={axisKeys(names).map((each) => {
            const checked = keys.includes(each.value);
            return { ...each, checked, disabled: checked && keys.length === 2 };
          })}
          onCheck={(value, checked) => setChosen((before) => ticked(before.length ? before : usual, value, checked))}
        />
        <Choice
          label="Colour"
          value={colorBy}
          values={names.metrics.map((value) => ({ value }))}
          onChange={setColorBy}
        />
        <Text fontSize="xs" color="fg.muted" marginInlineStart="auto">
          {plural(runs.length, noun)}. Drag along an axis to filter by a range; click the axis to clear it.
        </Text>
      </HStack>
      <Box overflowX="auto" tabIndex={0}>
        <Chart
          key={keys.join(" ")}
          option={option}
          height="340px"
          minWidth={`${AXIS_PX * (axes.length + 1)}px`}
          label={`${plural(runs.length, noun)} by ${axes.map(({ label }) => label).join(", ")}, coloured by ${colorBy}`}
          handlers={{ axisareaselected: marked }}
          onReady={restore}
        />
      </Box>
    </Box>
  );
}

function placed(run: Compared, axis: RunAxis): number | string {
  const value = figureOf(run, axis.key);
  return (axis.type === "category" ? value : asNumber(value)) ?? "-";
}

function intervalsOn(axis: RunAxis, brushes: readonly Brush[]): [number, number][] {
  return brushes
    .filter(({ key }) => key === axis.key)
    .map(({ low, high, words }) => {
      const places = (words ?? []).map((word) => axis.words.indexOf(word)).filter((place) => place >= 0);
      return words === null ? [low, high] : [Math.min(...places) - 0.3, Math.max(...places) + 0.3];
    });
}

function brushesOn(axis: RunAxis, intervals: readonly [number, number][]): Brush[] {
  return intervals.map(([low, high]) => ({
    key: axis.key,
    low,
    high,
    words: axis.type === "category" ? axis.words.filter((_, place) => place >= low - 0.5 && place <= high + 0.5) : null,
  }));
}
