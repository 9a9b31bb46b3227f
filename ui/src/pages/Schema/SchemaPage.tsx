import { Box, Button } from "@chakra-ui/react";
import { useEffect, useMemo, useRef } from "react";
import type { Schemas } from "src/api/client";
import { usePipelines } from "src/api/pipelines";
import { AppLink, Empty, LinesAlert, Notice, QueryView, TabPanels, Time } from "src/components";
import { formatNumber } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { refreshSchemas, useSchemas, useValidations, type ValidationEntry } from "src/pages/Schema/queries";
import { SchemaHeader } from "src/pages/Schema/SchemaHeader";
import { SchemaView } from "src/pages/Schema/SchemaView";
import { Validations } from "src/pages/Schema/Validations";
import { Versions } from "src/pages/Schema/Versions";
import { formatArtifact, parseArtifact, schemaPath } from "src/routes";
import { useDagId } from "src/shell/OfPipeline";

/** The schema of a pipeline, what its validations found, and what is proposed and decided about it. */
export function SchemaPage() {
  const dagId = useDagId();
  const schemas = useSchemas(dagId);
  return (
    <>
      <QueryView query={schemas}>{(found) => <Content dagId={dagId} {...found} />}</QueryView>
      {schemas.isLoadingError && <Validations dagId={dagId} />}
    </>
  );
}

function useTab(): [string, (tab: string) => void] {
  const [query, change] = useQuery();
  const named = query.get("tab");
  const artifact = useMemo(() => parseArtifact(query.get("artifact") ?? ""), [query]);
  const tab = named ?? (artifact?.kind === "anomalies" ? "anomalies" : "schema");
  return [tab, (chosen) => change({ tab: chosen, feature: null, search: null, sort: null }, { push: true })];
}

function Content({ dagId, schemas, elsewhere, problems }: Schemas["SchemaList"] & { dagId: string }) {
  const [query, change] = useQuery();
  const [tab, setTab] = useTab();
  const validations = useValidations(dagId);
  const found = validations.data?.entries ?? [];
  const states = found.map(({ task_state, question }) => `${task_state} ${question?.state}`).join();
  const seen = useRef(states);
  useEffect(() => {
    if (seen.current !== states) {
      seen.current = states;
      void refreshSchemas();
    }
  }, [states]);
  const schema = schemas.find(({ name }) => name === query.get("schema")) ?? schemas[0];
  const unread = <LinesAlert lines={problems.map((each) => `The schema cannot be read: ${each}`)} />;
  const noSchema = problems.length === 0 && <NoSchema elsewhere={elsewhere} />;
  if (schema === undefined && found.length === 0 && !validations.isError) {
    return noSchema || unread;
  }
  const latest = found.find(({ errors }) => errors !== null);
  const anomalies = latest ? latest.features_total - latest.drifted_total : 0;
  const open = (artifact: string) => change({ tab: "anomalies", artifact, feature: null }, { push: true });
  return (
    <Box>
      {unread}
      {found
        .filter(({ question }) => question?.state === "waiting")
        .map((each) => (
          <DecisionWaits
            key={formatArtifact(each.address)}
            validation={each}
            onOpen={() => open(formatArtifact(each.address))}
          />
        ))}
      {schema && <SchemaHeader schemas={schemas} schema={schema} latest={latest} />}
      <TabPanels
        opened={tab}
        onOpen={setTab}
        tabs={[
          {
            name: "schema",
            label: "Schema",
            content: schema ? <SchemaView dagId={dagId} schema={schema} latest={latest} /> : noSchema,
          },
          {
            name: "anomalies",
            label: `Anomalies${anomalies ? ` · ${formatNumber(anomalies)}` : ""}`,
            content: <Validations dagId={dagId} />,
          },
          {
            name: "versions",
            label: `Versions${schema && schema.versions.length > 1 ? ` · ${schema.versions.length}` : ""}`,
            content: schema ? <Versions dagId={dagId} schema={schema} /> : noSchema,
          },
        ]}
      />
    </Box>
  );
}

function NoSchema({ elsewhere }: { elsewhere: readonly string[] }) {
  const dagId = useDagId();
  const stages = usePipelines().data?.entries.find(({ dag_id }) => dag_id === dagId)?.stages;
  return (
    <Empty title={stages && !stages.includes("schema") ? "This pipeline has no schema" : "No schema yet"}>
      The first run of a <code>SchemaOperator</code> infers the schema from the statistics, and freezes it for all later
      runs.
      {elsewhere.map((dagId) => (
        <Box key={dagId} mt={2}>
          <AppLink to={schemaPath(dagId)}>{dagId}</AppLink>, which works on the same models, has a schema.
        </Box>
      ))}
    </Empty>
  );
}

/** Says that a run waits for a person, wherever one is on the page. */
function DecisionWaits({ validation, onOpen }: { validation: ValidationEntry; onOpen: () => void }) {
  const { question, address } = validation;
  return (
    <Notice
      status="warning"
      mb={3}
      alignItems="center"
      title="A run is waiting for a decision"
      action={
        <Button size="sm" onClick={onOpen}>
          Review
        </Button>
      }
    >
      Task {address.task_id} of run {address.run_id} asked <Time at={question?.asked_at} />.
    </Notice>
  );
}
