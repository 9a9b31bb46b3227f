import { Button, chakra, HStack, Stack, Text, useBreakpointValue } from "@chakra-ui/react";
import {
  apiAddress,
  Chart,
  formatDuration,
  formatNumber,
  formatTime,
  LinesAlert,
  metricLabel,
  plural,
  type Schemas,
  Time,
  useChartTheme,
  useQuery,
  useTimezone,
} from "airflow-hops";
import { useCallback, useMemo, useState } from "react";
import { LuDownload } from "react-icons/lu";
import { chartOption, heightFor, isMark } from "src/extensions/replay/chartOption";
import { usePolicyColors } from "src/extensions/replay/colors";
import { PolicyDrawer } from "src/extensions/replay/PolicyDrawer";
import { PolicyTable } from "src/extensions/replay/PolicyTable";
import { PriceChoice } from "src/extensions/replay/PriceChoice";
import { chosenAt, type Report } from "src/extensions/replay/report";

type Backtest = Schemas["Backtest"];

/** One back-test: its policies beside each other at a price of a training, over time, and each with its decisions. */
export function BacktestView({ dagId, model, backtest }: { dagId: string; model: string; backtest: Backtest }) {
  const { id, report } = backtest;
  const [query, change] = useQuery();
  // The address follows: keys may come faster than it changes.
  const [price, setPrice] = useState(() => priceIn(query.get("price")) ?? report.price);
  const open = useCallback(
    (policy: string, at: string | null = null) => change({ policy, at }, { push: true }),
    [change],
  );
  const outcomes = report.best ? [...report.policies, report.best] : report.policies;
  const opened = outcomes.find(({ name }) => name === query.get("policy"));
  const chosen = chosenAt(report, price);
  return (
    <Stack gap={4}>
      <HStack gap={3} wrap="wrap" justify="space-between">
        <Facts backtest={backtest} />
        <HStack gap={2} wrap="wrap">
          {backtest.has_policy && (
            <Button asChild size="xs" variant="outline">
              <chakra.a href={apiAddress("dags", dagId, "models", model, "backtests", id, "policy")} download>
                <LuDownload />
                policy.json
              </chakra.a>
            </Button>
          )}
        </HStack>
      </HStack>
      <LinesAlert lines={report.notes} />
      <PriceChoice
        report={report}
        price={price}
        onChange={setPrice}
        onChosen={(value) => change({ price: value === report.price ? null : String(value) })}
      />
      <PolicyTable report={report} price={price} chosen={chosen} opened={opened?.name} onOpen={open} />
      <PolicyChart report={report} onOpen={open} />
      {opened && (
        <PolicyDrawer
          report={report}
          policy={opened}
          chosen={opened.name === chosen}
          at={query.get("at")}
          onAt={(at) => change({ at })}
          onClose={() => change({ policy: null, at: null, decisionssort: null })}
        />
      )}
    </Stack>
  );
}

/** A price in the address; null where there is none. */
function priceIn(text: string | null): number | null {
  const price = text ? Number(text) : Number.NaN;
  return price >= 0 && Number.isFinite(price) ? price : null;
}

function Facts({ backtest: { by, report } }: { backtest: Backtest }) {
  const zone = useTimezone();
  const day = (at: string) => formatTime(at, zone).slice(0, 10);
  const who = by?.user ?? by?.dag_id;
  const rows = report.rows.reduce((sum, each) => sum + each, 0);
  return (
    <Text fontSize="sm" color="fg.muted">
      {metricLabel(report.metric)}, {report.lower_is_better ? "lower" : "higher"} is better · {day(report.start)} to{" "}
      {day(report.end)}, {plural(report.ticks.length, "period")}, {formatNumber(rows)} rows ·{" "}
      {plural(report.candidates.length, "candidate")}, {formatNumber(report.trained)} trained for this ·{" "}
      <Time at={report.made} />
      {who && ` by ${who}`} in {formatDuration(report.wall_s)}
    </Text>
  );
}

/** The metric of each policy over time, and which candidate served it when; a mark opens its decision. */
function PolicyChart({ report, onOpen }: { report: Report; onOpen: (policy: string, at: string) => void }) {
  const theme = useChartTheme();
  const zone = useTimezone();
  const colors = usePolicyColors(report);
  const narrow = useBreakpointValue({ base: true, md: false }) ?? false;
  const option = useMemo(() => chartOption(report, colors, theme, zone, narrow), [report, colors, theme, zone, narrow]);
  const click = (event: unknown) => {
    const { data } = event as { data?: unknown };
    if (isMark(data)) {
      onOpen(data.policy, data.at);
    }
  };
  const metric = metricLabel(report.metric);
  return (
    <Stack gap={1}>
      <Chart
        option={option}
        handlers={{ click }}
        height={heightFor(report.policies.length + (report.best ? 1 : 0))}
        label={`${metric} over time by policy, with its retrainings; below, which candidate served each policy when, and its decisions. The table's rows open them, too`}
      />
      <Text fontSize="xs" color="fg.muted">
        Circles are retrainings: filled where the gate let the candidate serve, hollow where it did not. Below, bars are
        spans in which one candidate served, and dots decisions; click one for its reasons.
      </Text>
    </Stack>
  );
}
