import { Box, Code, Heading, List, Stack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { CodeBlock } from "src/components";

const PREPARE = `airflow hops runtime create   # TensorFlow, TFDV, Spark, MLflow in a separate environment
airflow hops doctor           # reports what is missing, and how to fix it`;

const PIPELINE = `from airflow.sdk import DAG
from airflow_hops.operators import SchemaOperator, StatisticsOperator, ValidateExamplesOperator

with DAG("my_pipeline", schedule=None):
    statistics = StatisticsOperator(task_id="statistics", source="/data/*.csv")
    schema = SchemaOperator(task_id="schema", statistics=statistics.output)
    ValidateExamplesOperator(task_id="validate", statistics=statistics.output, schema=schema.output)
`;

const RUN = "airflow dags unpause my_pipeline && airflow dags trigger my_pipeline";

/** What a first look shows: there is no pipeline yet. */
export function HowToStart() {
  return (
    <Box maxW="3xl" mx="auto" py={6}>
      <Heading size="md" as="h2">
        No pipelines yet
      </Heading>
      <Text color="fg.muted" mt={1} mb={5}>
        A pipeline is a DAG with operators of <Code>airflow_hops.operators</Code>. It is listed here once Airflow has
        parsed it, if you have permission to read it. The shortest way to one:
      </Text>
      <List.Root as="ol" gap={5} ps={5}>
        <Step title="Prepare the machine">
          <CodeBlock label="the commands" code={PREPARE} />
        </Step>
        <Step title="Save a pipeline in your DAGs folder, with the path of your files (CSV, JSON Lines, Parquet)">
          <CodeBlock label="the pipeline" code={PIPELINE} />
        </Step>
        <Step title="Run it">
          <CodeBlock label="the command" code={RUN} />
        </Step>
      </List.Root>
      <Text color="fg.muted" mt={5} fontSize="sm">
        <Code>make demo</Code> in a checkout runs a whole loop on real flights, with training, canary, skew and
        retraining; <Code>docs/start/quickstart.md</Code> explains it, and <Code>docs/howto</Code> has a page for each
        operator. If a pipeline is missing here, <Code>airflow dags list-import-errors</Code> shows why.
      </Text>
    </Box>
  );
}

function Step({ title, children }: { title: string; children: ReactNode }) {
  return (
    <List.Item>
      <Stack gap={2}>
        <Text fontWeight="medium">{title}</Text>
        {children}
      </Stack>
    </List.Item>
  );
}
