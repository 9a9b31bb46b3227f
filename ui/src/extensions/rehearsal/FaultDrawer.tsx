import { chakra, Drawer, Stack, Text } from "@chakra-ui/react";
import {
  Chart,
  type ChartTheme,
  type EChartsCoreOption,
  formatPercent,
  Numbers,
  PlainTable,
  SideDrawer,
  stateInWords,
  useChartTheme,
} from "airflow-hops";
import { useMemo } from "react";
import { calledOf } from "src/extensions/rehearsal/FaultTable";
import {
  afterInWords,
  alarmsOf,
  effectInWords,
  type Fault,
  FOUND,
  kindOf,
  lossInWords,
  type Report,
  rangeInWords,
  shareInWords,
  sizeInWords,
  subjectOf,
} from "src/extensions/rehearsal/rehearsal";

/** A fault in full: in how many tries it is found at each size, and all that the table cuts off. */
export function FaultDrawer({ report, fault, onClose }: { report: Report; fault: Fault; onClose: () => void }) {
  const theme = useChartTheme();
  const alarms = alarmsOf(fault, report);
  const option = useMemo(() => powerOption(fault, alarms, theme), [fault, alarms, theme]);
  const lines: [string, string][] = [
    ["Smallest change found", fault.size === null ? `none, up to ${fault.words}` : fault.words],
    ["95% interval", rangeInWords(fault)],
    ["After", fault.size === null ? "" : afterInWords(fault, report)],
    ["Called", fault.size === null ? "" : [calledOf(fault), stateInWords(fault.verdict)].join(", verdict: ")],
    [
      "A fault of the pipeline",
      fault.fault_from === null ? "" : `from ${sizeInWords(fault.fault_from, fault.unit)} on`,
    ],
    ["Retraining", `${fault.retraining ? "yes" : "no"}${fault.why && `: ${fault.why}`}`],
    ["What slips through", [effectInWords(fault, report), lossInWords(fault, report)].filter(Boolean).join("; ")],
  ];
  return (
    <SideDrawer
      onClose={onClose}
      header={
        <Drawer.Title overflowWrap="anywhere">
          {subjectOf(fault)}: {kindOf(fault)}
        </Drawer.Title>
      }
    >
      <Stack gap={4}>
        <Numbers fontSize="sm" of={lines.filter(([, words]) => words)} />
        <Stack gap={1}>
          <Chart option={option} height="280px" label={powerInWords(fault)} />
          <Text fontSize="xs" color="fg.muted">
            Share of the tries in which it is found, by size, with its 95% interval; dashed: {formatPercent(FOUND)}. The
            orange band: of the unchanged windows, the share in which {fault.feature || "any feature"} is called
            drifted, {shareInWords(alarms)}.
          </Text>
        </Stack>
        <chakra.details fontSize="sm">
          <chakra.summary cursor="pointer">Table</chakra.summary>
          <PlainTable
            label="Found by size"
            dense
            rows={fault.curve}
            rowKey={({ size }) => size}
            columns={[
              { label: "Size", end: true, cell: ({ size }) => sizeInWords(size, fault.unit) },
              { label: "Found", end: true, cell: ({ power }) => shareInWords(power) },
            ]}
          />
        </chakra.details>
      </Stack>
    </SideDrawer>
  );
}

const powerInWords = (fault: Fault): string =>
  `Share of the tries in which ${kindOf(fault)} of ${subjectOf(fault)} is found: ` +
  fault.curve.map(({ size, power }) => `${formatPercent(power[0], 2)} at ${sizeInWords(size, fault.unit)}`).join(", ");

const BAND = { type: "line", symbol: "none", silent: true, lineStyle: { opacity: 0 }, tooltip: { show: false } };

/** The curve of power by size over its interval, the share that is wanted, and the false alarms. */
function powerOption({ curve, unit }: Fault, alarms: readonly (number | null)[], theme: ChartTheme): EChartsCoreOption {
  const color = theme.series[0];
  const sizes = curve.map(({ size }) => sizeInWords(size, unit));
  const band = (stack: string, [low, high]: [number[], number[]], fill: string | undefined) => {
    const heights = high.map((each, place) => each - (low[place] ?? 0));
    return [
      { ...BAND, stack, data: low },
      { ...BAND, stack, data: heights, areaStyle: { color: fill, opacity: 0.25 } },
    ];
  };
  const level = (value: number | null | undefined) => sizes.map(() => value ?? 0);
  return {
    grid: { left: 52, right: 16, top: 14, bottom: 44 },
    tooltip: { trigger: "axis", confine: true, valueFormatter: (share: number) => formatPercent(share, 2) },
    xAxis: { type: "category", data: sizes, boundaryGap: false, name: "size", nameLocation: "middle", nameGap: 28 },
    yAxis: { type: "value", min: 0, max: 1, axisLabel: { formatter: (share: number) => formatPercent(share) } },
    series: [
      ...band("alarms", [level(alarms[1]), level(alarms[2])], theme.series[1]),
      ...band("interval", [curve.map(({ power }) => power[1] ?? 0), curve.map(({ power }) => power[2] ?? 0)], color),
      {
        type: "line",
        name: "found",
        color,
        data: curve.map(({ power }) => power[0]),
        markLine: {
          symbol: "none",
          silent: true,
          label: { show: false },
          lineStyle: { color: theme.muted, type: "dashed" },
          data: [{ yAxis: FOUND }],
        },
      },
    ],
  };
}
