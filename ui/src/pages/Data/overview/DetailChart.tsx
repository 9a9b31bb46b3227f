import { HStack, Stack } from "@chakra-ui/react";
import { useMemo } from "react";
import { Segments, Toggle } from "src/components";
import { Chart, useChartTheme } from "src/components/chart";
import { useQueryParam } from "src/hooks/useQueryState";
import { cumulativeOption, histogramOption, ranksOption } from "src/pages/Data/overview/chartOptions";
import type { Side } from "src/pages/Data/overview/details";
import type { FeatureRow } from "src/pages/Data/overview/features";
import { usePlotStyle } from "src/pages/Data/overview/plot";

const BUCKETS = 20;
const VALUE_HEIGHT = 20;

interface Props {
  name: string;
  type: string;
  kind: FeatureRow["kind"];
  sides: readonly Side[];
  formatValue: (value: number) => string;
}

/** A feature's distribution at large, all data sets over one another. */
export function DetailChart({ name, type, kind, sides, formatValue }: Props) {
  const theme = useChartTheme();
  const { log, counts, setLog, setCounts } = usePlotStyle();
  const [view, setView] = useQueryParam("view", "histogram");
  const option = useMemo(() => {
    const style = { log, counts };
    if (kind === "num") {
      return view === "cumulative"
        ? cumulativeOption(sides, theme, formatValue)
        : histogramOption(sides, theme, formatValue, { ...style, integers: type === "INT", buckets: BUCKETS });
    }
    return kind === "string" ? ranksOption(sides, theme, { ...style, cumulative: view === "cumulative" }) : null;
  }, [kind, type, view, log, counts, sides, theme, formatValue]);
  if (option === null) {
    return null;
  }
  const values = Math.min(Math.max(...sides.map(({ detail }) => detail.values.length)), 20);
  const tall = kind === "string" && view !== "cumulative";
  return (
    <Stack gap={2}>
      <HStack gap={3} wrap="wrap">
        <Segments
          label="View"
          value={view}
          onChange={setView}
          items={[
            ["histogram", kind === "num" ? "Histogram" : "Values"],
            ["cumulative", "Cumulative"],
          ]}
        />
        {view !== "cumulative" && (
          <>
            <Toggle label="Count" checked={counts} onChange={setCounts} />
            <Toggle label="Log" checked={log} onChange={setLog} />
          </>
        )}
      </HStack>
      <Chart
        option={option}
        label={`${view === "cumulative" ? "Cumulative distribution" : "Distribution"} of ${name}`}
        height={tall ? `${60 + values * Math.max(VALUE_HEIGHT, 9 * sides.length)}px` : "280px"}
      />
    </Stack>
  );
}
