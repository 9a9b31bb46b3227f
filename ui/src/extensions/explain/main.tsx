import { Code, HStack, Stack } from "@chakra-ui/react";
import {
  type ArtifactRef,
  api,
  Choice,
  Empty,
  type ExtensionProps,
  formatArtifact,
  formatTime,
  parseArtifact,
  pathOf,
  QueryView,
  refOf,
  type Schemas,
  shortRun,
  useQuery,
  useTimezone,
} from "airflow-hops";
import { ExplanationView } from "src/extensions/explain/ExplanationView";

/** What the model looks at: the newest explanation of it, or another one. */
function ExplanationsTab({ dagId, model }: { dagId: string; model: string }) {
  const zone = useTimezone();
  const [query, change] = useQuery();
  const listed = api.useQuery("get", "/api/dags/{dag_id}/models/{model}/explanations", {
    params: { path: { dag_id: dagId, model } },
  });
  return (
    <QueryView query={listed}>
      {({ entries }) => {
        const values = entries.map((each) => ({
          value: formatArtifact(refOf(each)),
          label: `${formatTime(each.at, zone)} · ${shortRun(each.run_id)}`,
        }));
        const opened = parseArtifact(query.get("explanation") ?? values[0]?.value ?? "");
        if (opened === null) {
          return (
            <Empty title="The model has not been explained yet">
              An <Code>ExplainOperator</Code> after the training says what the model looks at, beside the champion.
            </Empty>
          );
        }
        return (
          <Stack gap={4}>
            {values.length > 1 && (
              <HStack>
                <Choice
                  label="Explanation"
                  value={formatArtifact(opened)}
                  values={values}
                  onChange={(explanation) => change({ explanation, row: null }, { push: true })}
                />
              </HStack>
            )}
            <Opened key={formatArtifact(opened)} artifact={opened} />
          </Stack>
        );
      }}
    </QueryView>
  );
}

/** The explanation that a task has made. */
function Opened({ artifact }: { artifact: ArtifactRef }) {
  const found = api.useQuery(
    "get",
    "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}/explanation",
    {
      params: { path: pathOf(artifact) },
    },
  );
  // The client's types make arrays of tuples.
  const shown = ({ report }: { report: unknown }) => <ExplanationView report={report as Schemas["Explanation"]} />;
  return <QueryView query={found}>{shown}</QueryView>;
}

/** On a task's tab, the explanation that it made; on a model's, all of them. */
export default function Explanations({ dagId = "", model = "", artifact }: ExtensionProps) {
  if (artifact === undefined) {
    return <ExplanationsTab dagId={dagId} model={model} />;
  }
  return artifact.state === "present" && <Opened artifact={artifact} />;
}
