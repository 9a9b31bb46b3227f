import { Box, Link, Text } from "@chakra-ui/react";
import {
  apiAddress,
  CodeBlock,
  formatNumber,
  instanceOf,
  Numbers,
  numberIn,
  recordIn,
  type Schemas,
  textsIn,
} from "airflow-hops";

/** An executed notebook: what it was given and left, and its page, which frames the notebook's own document so that it cannot act as the reader. */
export default function NotebookResult({ artifact }: { artifact: Schemas["ArtifactEntry"] }) {
  const { dag_id, run_id, task_id, kind, metrics, properties, state } = artifact;
  const page = apiAddress("dags", dag_id, "runs", run_id, "artifacts", task_id, instanceOf(artifact), kind, "page");
  const parameters = Object.entries(recordIn(properties, "parameters"));
  const failed = numberIn(properties, "failed_cell");
  const cut = textsIn(properties, "cut_cells");
  return (
    <>
      <Numbers
        of={[
          ["cells", formatNumber(metrics.cells)],
          ["seconds", formatNumber(metrics.seconds, 3)],
          ...(failed === null ? [] : ([["failed cell", String(failed)]] as const)),
        ]}
      />
      {parameters.length > 0 && (
        <CodeBlock
          label="parameters"
          maxHeight="12rem"
          code={parameters.map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join("\n")}
        />
      )}
      {(properties.result ?? null) !== null && (
        <Box>
          <Text fontSize="sm">Result</Text>
          <CodeBlock label="result" maxHeight="12rem" code={JSON.stringify(properties.result, null, 2)} />
        </Box>
      )}
      {cut.length > 0 && <Text fontSize="sm">More output than is kept, and cut, in cells {cut.join(", ")}</Text>}
      {state === "present" && (
        <Box>
          <Box borderWidth={1} borderRadius="md" overflow="hidden">
            <iframe
              src={page}
              title={`Notebook of ${task_id}`}
              style={{ display: "block", width: "100%", height: "75vh", border: 0, background: "#fff" }}
            />
          </Box>
          <Link href={page} target="_blank" rel="noreferrer" fontSize="sm" color="fg.info">
            Open in a tab of its own
          </Link>
        </Box>
      )}
    </>
  );
}
