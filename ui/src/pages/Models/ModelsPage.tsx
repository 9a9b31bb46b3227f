import { Box, Code, HStack, Text } from "@chakra-ui/react";
import { useQueries } from "@tanstack/react-query";
import { api, type Schemas } from "src/api/client";
import { AppLink } from "src/components/AppLink";
import { ERROR } from "src/components/colors";
import { DataTable } from "src/components/DataTable";
import { Empty } from "src/components/Empty";
import { QueryView } from "src/components/QueryView";
import { Sparkline } from "src/components/Sparkline";
import { StateBadge } from "src/components/StateBadge";
import { Time } from "src/components/Time";
import { Tooltip } from "src/components/Tooltip";
import { type Column, numberColumn } from "src/components/table";
import { formatNumber, formatPercent } from "src/format";
import { type Entry, historyOf } from "src/pages/Models/history";
import { type LiveModel, liveOptions } from "src/pages/Models/queries";
import { perSecond, type Rates, ratesOf } from "src/pages/Models/rates";
import { TrafficBar } from "src/pages/Models/TrafficBar";
import { VersionBadge } from "src/pages/Models/versions";
import { metricLabel, titleOf } from "src/pages/Models/words";
import { modelsPath } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

const MINUTES = 15;

interface Row {
  model: Schemas["ModelSummary"];
  live: LiveModel | undefined;
  rates: Rates | null;
}

/** The models that a pipeline works on: what serves, how well, and how it came to. */
export function ModelsPage() {
  const dagId = useDagId();
  const models = api.useQuery("get", "/api/dags/{dag_id}/models", { params: { path: { dag_id: dagId } } });
  return (
    <QueryView query={models}>
      {({ entries: found }) =>
        found.length === 0 ? (
          <Empty title="This pipeline serves no model">
            A model is served by <Code>DeployModelOperator(task_id="deploy", model=…, model_name="…")</Code>; once a DAG
            has a task with a <Code>model_name</Code>, the model is listed here.
          </Empty>
        ) : (
          <ModelTable dagId={dagId} models={found} />
        )
      }
    </QueryView>
  );
}

function ModelTable({ dagId, models }: { dagId: string; models: Schemas["ModelSummary"][] }) {
  const lives = useQueries({ queries: models.map(({ name }) => liveOptions(dagId, name, MINUTES)) });
  const rows = models.map((model, index): Row => {
    const live = lives[index]?.data;
    return { model, live, rates: live?.series ? ratesOf(live.series, MINUTES) : null };
  });
  return (
    <Box>
      <DataTable
        label="Models"
        rows={rows}
        rowKey={({ model }) => model.name}
        rowHeight={56}
        columns={columnsFor(dagId)}
      />
      <Text mt={2} fontSize="xs" color="fg.muted">
        Rates and latencies are those of the last {MINUTES} minutes, as the model server counts them.
      </Text>
    </Box>
  );
}

export function columnsFor(dagId: string): Column<Row>[] {
  return [
    {
      key: "model",
      label: "Model",
      fixed: true,
      width: 180,
      minWidth: 130,
      value: ({ model }) => model.name,
      render: ({ model }) => (
        <AppLink to={modelsPath(dagId, { model: model.name })} fontWeight="semibold" title={model.name}>
          {model.name}
        </AppLink>
      ),
    },
    {
      key: "champion",
      label: "Champion",
      width: 120,
      value: ({ model }) => model.champion?.version,
      render: ({ model }) => <Champion model={model} />,
    },
    {
      key: "metric",
      label: "Metric",
      width: 130,
      align: "end",
      descendingFirst: true,
      value: ({ model }) => model.metric?.value,
      render: ({ model }) => model.metric && <Metric {...model.metric} />,
    },
    {
      key: "challenger",
      label: "Challenger",
      width: 120,
      value: ({ model }) => model.challenger?.version,
      render: ({ model }) =>
        model.challenger ? (
          <Box lineHeight="short">
            <VersionBadge version={model.challenger.version} />
            {model.rollout && (
              <Text fontSize="xs" color="fg.muted">
                step {model.rollout.number} of {model.rollout.steps}
              </Text>
            )}
          </Box>
        ) : (
          <Text color="fg.muted">none</Text>
        ),
    },
    {
      key: "traffic",
      label: "Live traffic",
      width: 160,
      minWidth: 130,
      render: ({ model, live }) => <Traffic model={model} live={live} />,
    },
    {
      key: "requests",
      label: "Requests/s",
      width: 170,
      minWidth: 130,
      align: "end",
      descendingFirst: true,
      value: ({ rates }) => rates?.perSecond,
      render: ({ live, rates }) => <Requests live={live} rates={rates} />,
    },
    {
      key: "errors",
      label: "Errors",
      width: 110,
      align: "end",
      descendingFirst: true,
      help: "Share of failed requests, without those refused because of an error in the request",
      value: ({ rates }) => rates?.errorShare,
      render: ({ rates }) => (
        <Box lineHeight="short">
          <Text color={rates?.errors ? ERROR : undefined}>{formatPercent(rates?.errorShare)}</Text>
          {Boolean(rates?.refused) && (
            <Text fontSize="xs" color="fg.muted">
              {formatPercent(rates?.refusedShare)} refused
            </Text>
          )}
        </Box>
      ),
    },
    numberColumn("p99", "p99", ({ rates }) => rates?.p99, {
      width: 100,
      help: "99th percentile of the latency: the mean of the ten-second steps, weighted by requests",
      format: (p99) => (p99 == null ? "–" : `${formatNumber(p99, 3)} ms`),
    }),
    {
      key: "decision",
      label: "Last decision",
      width: 240,
      minWidth: 150,
      descendingFirst: true,
      value: ({ model }) => lastOf(model)?.at,
      render: ({ model }) => <LastDecision entry={lastOf(model)} />,
    },
  ];
}

function Champion({ model }: { model: Schemas["ModelSummary"] }) {
  if (model.problem) {
    return (
      <Tooltip content={model.problem}>
        <span>
          <StateBadge state="warning">unknown</StateBadge>
        </span>
      </Tooltip>
    );
  }
  return model.champion ? (
    <Box lineHeight="short">
      <VersionBadge version={model.champion.version} />
      <Text fontSize="xs" color="fg.muted">
        <Time at={model.champion.since} />
      </Text>
    </Box>
  ) : (
    <Text color="fg.muted">none yet</Text>
  );
}

function Metric({ name, split, value }: Schemas["HeadlineMetric"]) {
  return (
    <Box lineHeight="short">
      <Text fontWeight="medium">{formatNumber(value)}</Text>
      <Text fontSize="xs" color="fg.muted">
        {metricLabel(name)} on {split}
      </Text>
    </Box>
  );
}

function Traffic({ model, live }: { model: Schemas["ModelSummary"]; live: LiveModel | undefined }) {
  if (live?.problem) {
    return (
      <Tooltip content={live.problem}>
        <span>
          <StateBadge state="error">no answer</StateBadge>
        </span>
      </Tooltip>
    );
  }
  const decided = [model.champion, model.challenger].filter((each) => each !== null);
  const shares = live?.versions.some(({ traffic_percent }) => traffic_percent !== null)
    ? live.versions.map(({ version, traffic_percent }) => ({ version, percent: traffic_percent ?? 0 }))
    : decided.map(({ version, traffic_percent }) => ({ version, percent: traffic_percent }));
  return <TrafficBar shares={shares} size="compact" />;
}

function Requests({ live, rates }: { live: LiveModel | undefined; rates: Rates | null }) {
  if (!live?.series || !rates) {
    return "–";
  }
  return (
    <HStack justify="flex-end" gap={3}>
      <Sparkline values={perSecond(live.series)} label={`Requests per second in the last ${MINUTES} minutes`} />
      <Text minW="10">{formatNumber(rates.perSecond, 3)}</Text>
    </HStack>
  );
}

const lastOf = ({ last_decision: decision, last_refused: refused }: Schemas["ModelSummary"]): Entry | undefined =>
  historyOf(decision ? [decision] : [], refused ? [refused] : [])[0];

function LastDecision({ entry }: { entry: Entry | undefined }) {
  if (entry === undefined || entry.kind === "retraining") {
    return "–";
  }
  const [title, why, by] =
    entry.kind === "refused"
      ? ["Candidate refused", entry.candidate.why, null]
      : [titleOf(entry.group[0]), entry.group[0].why, entry.group[0].by?.user];
  return (
    <Tooltip content={why}>
      <Box lineHeight="short" tabIndex={0}>
        <Text truncate>{title}</Text>
        <Text fontSize="xs" color="fg.muted">
          <Time at={entry.at} />
          {by && ` by ${by}`}
        </Text>
      </Box>
    </Tooltip>
  );
}
