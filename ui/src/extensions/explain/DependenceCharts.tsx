import { Box, chakra, SimpleGrid, Text } from "@chakra-ui/react";
import {
  Chart,
  type ChartTheme,
  type EChartsCoreOption,
  formatNumber,
  formatPercent,
  PlainTable,
  useChartTheme,
} from "airflow-hops";
import { useMemo } from "react";
import type { Dependence, Explanation } from "src/extensions/explain/explanation";

/** A chart of each leading feature, with its numbers as a table below. */
export function DependenceCharts({ report, champion }: { report: Explanation; champion: string | null }) {
  const outputs = report.dependence_classes ?? [report.problem === "regression" ? "prediction" : "probability"];
  return (
    <SimpleGrid columns={{ base: 1, xl: 2 }} gap={4}>
      {report.dependence.map((each) => (
        <OfFeature key={each.feature} of={each} outputs={outputs} champion={champion} />
      ))}
    </SimpleGrid>
  );
}

interface Props {
  of: Dependence;
  outputs: readonly string[];
  champion: string | null;
}

const valueInWords = (value: string | number | null): string =>
  value === null ? "missing" : typeof value === "number" ? formatNumber(value) : value;

function OfFeature({ of, outputs, champion }: Props) {
  const theme = useChartTheme();
  const option = useMemo(() => chartOption(of, outputs, champion, theme), [of, outputs, champion, theme]);
  const means = of.points.flatMap(({ candidate }) => candidate);
  const range = `${formatNumber(Math.min(...means))} to ${formatNumber(Math.max(...means))}`;
  return (
    <Box as="section" aria-label={of.feature} borderWidth="1px" borderRadius="md" p={3} minW={0}>
      <Text fontWeight="semibold" overflowWrap="anywhere">
        {of.feature}
      </Text>
      <Chart option={option} label={`Mean prediction by ${of.feature}: ${range}`} height="240px" />
      <chakra.details fontSize="sm">
        <chakra.summary cursor="pointer">Table</chakra.summary>
        <Numbers of={of} outputs={outputs} champion={champion} />
      </chakra.details>
    </Box>
  );
}

function Numbers({ of, outputs, champion }: Props) {
  const models = champion === null ? outputs : [...outputs, ...outputs.map((name) => `champion's ${name}`)];
  return (
    <PlainTable
      label={`Mean prediction by ${of.feature}`}
      rows={of.points}
      rowKey={({ value }) => String(value)}
      columns={[
        { label: of.feature, cell: ({ value }) => valueInWords(value) },
        { label: "Rows", end: true, cell: ({ share }) => formatPercent(share) },
        ...models.map((name, place) => ({
          label: name,
          end: true,
          cell: ({ candidate, champion: theirs }: Dependence["points"][number]) =>
            formatNumber([...candidate, ...(theirs ?? [])][place]),
        })),
      ]}
    />
  );
}

function chartOption(
  of: Dependence,
  outputs: readonly string[],
  champion: string | null,
  theme: ChartTheme,
): EChartsCoreOption {
  const present = of.points.filter(({ value }) => value !== null || !of.is_number);
  const x = (value: string | number | null) => (of.is_number ? value : valueInWords(value));
  const lines = outputs.flatMap((name, place) => {
    const color = theme.series[place % theme.series.length];
    const line = { type: of.is_number ? "line" : "scatter", color, symbolSize: of.is_number ? 4 : 9 };
    return [
      { ...line, name, data: present.map(({ value, candidate }) => [x(value), candidate[place]]) },
      ...(champion !== null && present[0]?.champion
        ? [
            {
              ...line,
              name: `champion's ${name}`,
              symbol: "emptyCircle",
              lineStyle: { type: "dashed" },
              data: present.map((point) => [x(point.value), point.champion?.[place]]),
            },
          ]
        : []),
    ];
  });
  return {
    grid: { left: 58, right: 44, top: 30, bottom: 40 },
    legend: { type: "scroll", data: lines.map(({ name }) => name) },
    tooltip: { trigger: "axis", confine: true, valueFormatter: (value: number) => formatNumber(value) },
    xAxis: { type: of.is_number ? "value" : "category", scale: true },
    yAxis: [
      { type: "value", scale: true },
      { type: "value", min: 0, splitLine: { show: false }, axisLabel: { formatter: (v: number) => formatPercent(v) } },
    ],
    series: [
      {
        type: "bar",
        name: "rows",
        yAxisIndex: 1,
        barMaxWidth: 10,
        color: theme.color("bg.emphasized"),
        tooltip: { valueFormatter: (value: number) => formatPercent(value) },
        data: present.map(({ value, share }) => [x(value), share]),
      },
      ...lines,
    ],
  };
}
