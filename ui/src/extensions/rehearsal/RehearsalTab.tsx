import { Stack, Text } from "@chakra-ui/react";
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
import { RehearsalView } from "src/extensions/rehearsal/RehearsalView";

const MOST = 50;

/** What the model's monitor would find, when, and what would slip through: by the newest rehearsal, or another one. */
export function RehearsalTab({ dagId, model }: { dagId: string; model: string }) {
  const zone = useTimezone();
  const [query, change] = useQuery();
  const listed = api.useQuery("get", "/api/dags/{dag_id}/models/{model}/rehearsals", {
    params: { path: { dag_id: dagId, model }, query: { limit: MOST } },
  });
  return (
    <QueryView query={listed}>
      {({ entries, problems, total_entries }) => {
        const opened = query.get("rehearsal") ?? entries[0]?.id;
        const values = entries.map(({ id, made, version }) => ({
          value: id,
          label: `${formatTime(made, zone)} · version ${version}`,
        }));
        if (opened !== undefined && values.every(({ value }) => value !== opened)) {
          values.push({ value: opened, label: opened });
        }
        return (
          <Stack gap={4}>
            <LinesAlert
              status="error"
              title={`${plural(problems.length, "rehearsal")} cannot be read`}
              lines={problems}
            />
            {values.length > 1 && (
              <Choice
                label={`Rehearsal, of ${formatNumber(total_entries)}`}
                value={opened ?? ""}
                values={values}
                onChange={(rehearsal) => change({ rehearsal, change: null }, { push: true })}
              />
            )}
            {opened !== undefined && <Opened key={opened} dagId={dagId} model={model} rehearsal={opened} />}
            {opened === undefined && problems.length === 0 && <None model={model} />}
          </Stack>
        );
      }}
    </QueryView>
  );
}

function Opened({ dagId, model, rehearsal }: { dagId: string; model: string; rehearsal: string }) {
  const found = api.useQuery("get", "/api/dags/{dag_id}/models/{model}/rehearsals/{rehearsal}", {
    params: { path: { dag_id: dagId, model, rehearsal } },
  });
  // The client's types make arrays of tuples.
  return <QueryView query={found}>{(made) => <RehearsalView made={made as Schemas["MadeRehearsal"]} />}</QueryView>;
}

function None({ model }: { model: string }) {
  const task =
    "from airflow_hops.extensions.rehearsal import RehearseOperator\n\n" +
    `RehearseOperator(task_id="rehearse", model_name="${model}")`;
  return (
    <Empty title="No rehearsal yet">
      <Stack gap={3}>
        <Text>
          A rehearsal plants faults into copies of the rows that the model has answered, in growing sizes, and runs this
          monitor on them: it says which changes it would find, after how long, and what would slip through. A command
          runs one:
        </Text>
        <CodeBlock code={`airflow hops rehearse ${model}`} label="command" />
        <Text>Or a task of a DAG, such as that which monitors the model:</Text>
        <CodeBlock code={task} label="task" />
      </Stack>
    </Empty>
  );
}
