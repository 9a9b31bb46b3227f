import { HStack, Stack, Text } from "@chakra-ui/react";
import {
  api,
  Choice,
  CodeBlock,
  Empty,
  formatNumber,
  formatTime,
  LinesAlert,
  plural,
  QueryView,
  type Schemas,
  useQuery,
  useTimezone,
} from "airflow-hops";
import { BacktestView } from "src/extensions/replay/BacktestView";

const MOST = 50;

/** What retraining policies would have made of the model's history: the newest back-test, or another one. */
export function BacktestsTab({ dagId, model }: { dagId: string; model: string }) {
  const zone = useTimezone();
  const [query, change] = useQuery();
  const path = { dag_id: dagId, model };
  const listed = api.useQuery("get", "/api/dags/{dag_id}/models/{model}/backtests", {
    params: { path, query: { limit: MOST } },
  });
  return (
    <QueryView query={listed}>
      {({ entries: backtests, problems: damaged, total_entries }) => {
        const opened = query.get("backtest") ?? backtests[0]?.id;
        const named = ({ made, chosen }: (typeof backtests)[number]) => `${formatTime(made, zone)} · ${chosen}`;
        const values = backtests.map((each) => ({ value: each.id, label: named(each) }));
        if (opened !== undefined && values.every(({ value }) => value !== opened)) {
          values.push({ value: opened, label: opened });
        }
        return (
          <Stack gap={4}>
            <LinesAlert
              status="error"
              title={`${plural(damaged.length, "back-test")} cannot be read`}
              lines={damaged}
            />
            {values.length > 1 && (
              <HStack>
                <Choice
                  label="Back-test"
                  value={opened ?? ""}
                  values={values}
                  onChange={(backtest) => change({ backtest, price: null, policy: null, at: null }, { push: true })}
                />
                {total_entries > MOST && (
                  <Text fontSize="xs">
                    the newest {MOST} of {formatNumber(total_entries)}
                  </Text>
                )}
              </HStack>
            )}
            {opened !== undefined && <Opened key={opened} dagId={dagId} model={model} backtest={opened} />}
            {opened === undefined && damaged.length === 0 && <None model={model} />}
          </Stack>
        );
      }}
    </QueryView>
  );
}

function Opened(path: { dagId: string; model: string; backtest: string }) {
  const { dagId, model, backtest } = path;
  const found = api.useQuery("get", "/api/dags/{dag_id}/models/{model}/backtests/{backtest}", {
    params: { path: { dag_id: dagId, model, backtest } },
  });
  // The client's types make arrays of tuples.
  const shown = (each: unknown) => <BacktestView dagId={dagId} model={model} backtest={each as Schemas["Backtest"]} />;
  return <QueryView query={found}>{shown}</QueryView>;
}

function None({ model }: { model: string }) {
  const task =
    `BacktestOperator(task_id="backtest", model_name="${model}",\n` +
    '    start="2025-01-01", end="2026-01-01", policies=["never", "monthly", "drift"])';
  return (
    <Empty title="No back-test yet">
      <Stack gap={3}>
        <Text>
          A back-test trains the model again as each policy would have asked for it, and says what that would have
          gained and cost. A task of a DAG runs one:
        </Text>
        <CodeBlock code={task} label="task" />
      </Stack>
    </Empty>
  );
}
