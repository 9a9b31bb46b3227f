import { Box, Code, Text } from "@chakra-ui/react";
import { api, type Schemas } from "src/api/client";
import { AppLink, type Column, column, DataTable, Empty, QueryView, Redirect, StateBadge, Time } from "src/components";
import { formatNumber } from "src/format";
import { type Entry, historyOf } from "src/pages/Models/history";
import { TrafficBar } from "src/pages/Models/TrafficBar";
import { VersionBadge } from "src/pages/Models/versions";
import { metricLabel, titleOf } from "src/pages/Models/words";
import { modelsPath } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

type Summary = Schemas["ModelSummary"];

/** The models that a pipeline works on: what was decided to serve, how well, and how it came to. One is opened at once. */
export function ModelsPage() {
  const dagId = useDagId();
  const models = api.useQuery("get", "/api/dags/{dag_id}/models", { params: { path: { dag_id: dagId } } });
  return (
    <QueryView query={models}>
      {({ entries: [first, ...others] }) =>
        first === undefined ? (
          <Empty title="This pipeline serves no model">
            A model is served by <Code>DeployModelOperator(task_id="deploy", model=…, model_name="…")</Code>; once a DAG
            has a task with a <Code>model_name</Code>, the model is listed here.
          </Empty>
        ) : others.length === 0 ? (
          <Redirect to={modelsPath(dagId, { model: first.name })} />
        ) : (
          <DataTable
            label="Models"
            rows={[first, ...others]}
            rowKey={({ name }) => name}
            rowHeight={56}
            columns={columnsFor(dagId)}
          />
        )
      }
    </QueryView>
  );
}

export function columnsFor(dagId: string): Column<Summary>[] {
  return [
    column("model", "Model", {
      fixed: true,
      width: 180,
      minWidth: 130,
      value: ({ name }) => name,
      render: ({ name }) => (
        <AppLink to={modelsPath(dagId, { model: name })} fontWeight="semibold" title={name}>
          {name}
        </AppLink>
      ),
    }),
    column("champion", "Champion", {
      width: 120,
      value: ({ champion }) => champion?.version,
      render: (model) => <Champion model={model} />,
    }),
    column("metric", "Metric", {
      width: 180,
      descendingFirst: true,
      value: ({ metric }) => metric?.value,
      render: ({ metric }) => metric && `${metricLabel(metric.name)} ${formatNumber(metric.value)} on ${metric.split}`,
    }),
    column("challenger", "Challenger", {
      width: 120,
      value: ({ challenger }) => challenger?.version,
      render: ({ challenger, problem }) =>
        problem ? null : challenger ? <VersionBadge version={challenger.version} /> : "none",
    }),
    column("traffic", "Decided traffic", {
      width: 200,
      minWidth: 130,
      help: "As it was decided; the page of the model says whether its server serves it so",
      render: ({ champion, challenger, problem }) =>
        problem ? null : (
          <TrafficBar
            size="compact"
            shares={[champion, challenger]
              .filter((each) => each !== null)
              .map(({ version, traffic_percent }) => ({ version, percent: traffic_percent }))}
          />
        ),
    }),
    column("decision", "Last decision", {
      width: 240,
      minWidth: 150,
      descendingFirst: true,
      value: (model) => lastOf(model)?.at,
      render: (model) => <LastDecision entry={lastOf(model)} />,
    }),
  ];
}

function Champion({ model }: { model: Summary }) {
  if (model.problem) {
    return (
      <StateBadge state="warning" title={model.problem}>
        unknown
      </StateBadge>
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

const lastOf = ({ last_decision: decision, last_refused: refused }: Summary): Entry | undefined =>
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
    <Box lineHeight="short" title={why}>
      <Text truncate>{title}</Text>
      <Text fontSize="xs" color="fg.muted">
        <Time at={entry.at} />
        {by && ` by ${by}`}
      </Text>
    </Box>
  );
}
