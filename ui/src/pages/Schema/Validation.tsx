import { Box, Grid, Heading, HStack, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { AppLink, LinesAlert, Notice, QueryView, StateBadge, Time } from "src/components";
import { formatNumber, shortRun } from "src/format";
import { useQuery } from "src/hooks/useQueryState";
import { AnomalyPanel } from "src/pages/Schema/AnomalyPanel";
import { AnomalyTable } from "src/pages/Schema/AnomalyTable";
import { gather } from "src/pages/Schema/findings";
import { Proposal } from "src/pages/Schema/Proposal";
import { Quarantine } from "src/pages/Schema/Quarantine";
import { QuestionCard } from "src/pages/Schema/QuestionCard";
import { useReport, type ValidationEntry, type ValidationReport } from "src/pages/Schema/queries";
import { Verdict } from "src/pages/Schema/SchemaHeader";
import { airflowRunPath, airflowTaskPath, dataPath, lineagePath, pagePath } from "src/routes";

/** One validation: what it found, what it proposes, what was decided, and the rows that it put apart. */
export function Validation({ dagId, validation }: { dagId: string; validation: ValidationEntry }) {
  const { address, artifact, detail, question } = validation;
  return (
    <Box as="section" aria-label={`Validation of run ${address.run_id}`}>
      <HStack gap={3} mb={3} wrap="wrap" fontSize="sm">
        <Heading size="md" wordBreak="break-word">
          <AppLink to={airflowRunPath(dagId, address.run_id)} color="fg" title={address.run_id}>
            {shortRun(address.run_id)}
          </AppLink>
        </Heading>
        <Verdict validation={validation} />
        <Text color="fg.muted">
          <Time at={validation.run_after} /> · task <AppLink to={airflowTaskPath(address)}>{address.task_id}</AppLink>
        </Text>
        <StateBadge state={validation.task_state} />
        {validation.cached && <Text color="fg.muted">taken from an earlier run</Text>}
        <AppLink to={lineagePath(dagId, { artifact: address })}>Lineage</AppLink>
      </HStack>
      <LinesAlert lines={[artifact === "present" && detail]} />
      {question && <QuestionCard dagId={dagId} validation={validation} question={question} />}
      {artifact === "present" ? <Report dagId={dagId} validation={validation} /> : <NoReport validation={validation} />}
    </Box>
  );
}

function NoReport({ validation: { artifact, detail, task_state } }: { validation: ValidationEntry }) {
  if (artifact === "none") {
    const runs = task_state === "running" || task_state === "queued";
    return (
      <Text color="fg.muted">
        {runs ? "The task is running; its findings will appear here." : "The task ended without findings; see its log."}
      </Text>
    );
  }
  return (
    <Notice
      status="warning"
      title={artifact === "deleted" ? "The findings have been deleted" : "The findings cannot be read"}
    >
      {detail}
    </Notice>
  );
}

function Report({ dagId, validation }: { dagId: string; validation: ValidationEntry }) {
  const report = useReport(validation.address);
  return (
    <QueryView query={report}>{(found) => <Found dagId={dagId} validation={validation} report={found} />}</QueryView>
  );
}

interface Props {
  dagId: string;
  validation: ValidationEntry;
  report: ValidationReport;
}

function Found({ dagId, validation, report }: Props) {
  const [query, change] = useQuery();
  const findings = useMemo(() => gather(report), [report]);
  const named = query.get("feature");
  const opened = findings.find(({ feature }) => feature === named);
  return (
    <Grid gap={5} templateColumns={{ base: "minmax(0, 1fr)", xl: opened ? "minmax(0, 1fr) 25rem" : "minmax(0, 1fr)" }}>
      <Box minW={0}>
        <LinesAlert lines={report.unknown} />
        <Context dagId={dagId} report={report} />
        <AnomalyTable
          report={report}
          findings={findings}
          opened={named}
          onOpen={(feature) => change({ feature: feature === named ? null : feature }, { push: named === null })}
        />
        <Proposal validation={validation} report={report} />
        <Quarantine address={validation.address} quarantined={report.quarantined} />
      </Box>
      {opened && (
        <AnomalyPanel dagId={dagId} report={report} finding={opened} onClose={() => change({ feature: null })} />
      )}
    </Grid>
  );
}

/** What was held against what. */
function Context({ dagId, report }: { dagId: string; report: ValidationReport }) {
  const { statistics, schema_name: schema, schema_version: version } = report;
  const rows = Object.entries(report.rows).map(([split, count]) => `${split} ${formatNumber(count)}`);
  return (
    <Text fontSize="sm" color="fg.muted" mb={3}>
      Rows: {rows.join(", ")}
      {statistics && (
        <>
          {" · "}
          <AppLink to={dataPath(statistics.dag_id, { artifacts: [statistics] })}>their statistics</AppLink>
        </>
      )}
      {schema && (
        <>
          {" · validated against "}
          <AppLink to={pagePath("schema", dagId, { schema, version })}>
            {schema}
            {version === null ? "" : `, version ${version}`}
          </AppLink>
        </>
      )}
    </Text>
  );
}
