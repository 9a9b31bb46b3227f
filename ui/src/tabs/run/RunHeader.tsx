import { HStack, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { Schemas } from "src/api/client";
import { AppLink, StateBadge } from "src/components";
import { formatBytes } from "src/format";
import { StageStrip } from "src/pages/Pipelines/StageStrip";
import { airflowTaskPath, instanceLabel, instanceOf, pagePath } from "src/routes";
import type { StageRow } from "src/tabs/run/stages";
import { ENDED } from "src/tabs/states";

interface Props {
  dagId: string;
  run: Schemas["RunStages"];
  rows: readonly StageRow[];
}

/** What the run has made as a whole; state and times stand above it, where the host shows them. */
export function RunHeader({ dagId, run, rows }: Props) {
  const made = rows.flatMap(({ artifact }) => (artifact ? [artifact] : []));
  const cached = made.filter((artifact) => artifact.cached).length;
  const size = made.reduce((sum, { size_bytes, cached: taken }) => sum + (taken ? 0 : (size_bytes ?? 0)), 0);
  const ended = run.stages.filter(({ state }) => ENDED.has(state ?? "")).length;
  return (
    <HStack gap={5} wrap="wrap" fontSize="sm" minHeight="36px" fontVariantNumeric="tabular-nums">
      <HStack gap={2}>
        <StageStrip
          stages={run.stages.map((stage) => ({
            task_id: `${stage.task_id}${instanceLabel(stage)}`,
            stage: stage.stage,
            state: stage.state ?? "none",
            instances: 1,
            ended: ENDED.has(stage.state ?? "") ? 1 : 0,
          }))}
          width="200px"
        />
        <Muted>
          {ended} of {run.stages.length} ended
        </Muted>
      </HStack>
      <Muted>
        <strong>{made.length}</strong> {made.length === 1 ? "artifact" : "artifacts"}
        {cached > 0 && `, ${cached} from earlier runs`}
      </Muted>
      <Muted>
        <strong>{formatBytes(size)}</strong> written
      </Muted>
      {run.triggered_by && <Muted>started by {run.triggered_by}</Muted>}
      {run.refusals.map((refusal) => (
        <Refused key={`${refusal.task_id} ${instanceOf(refusal)}`} dagId={dagId} runId={run.run_id} refusal={refusal} />
      ))}
      <HStack gap={4} marginInlineStart="auto">
        <AppLink to={pagePath("runs", dagId)}>Training runs</AppLink>
        <AppLink to={pagePath("lineage", dagId)}>Lineage</AppLink>
      </HStack>
    </HStack>
  );
}

/** Which task refused a model, and why: the host says no more than that the run succeeded. */
function Refused({ dagId, runId, refusal }: { dagId: string; runId: string; refusal: Schemas["TaskVerdict"] }) {
  const { task_id, verdict, why, ...position } = refusal;
  return (
    <HStack gap={2} minWidth={0} maxWidth="xl" title={why ?? undefined}>
      <StateBadge state="refused" size="sm">
        {verdict}
      </StateBadge>
      <Text truncate>
        <AppLink to={airflowTaskPath({ dag_id: dagId, run_id: runId, task_id, ...position })}>{task_id}</AppLink>: {why}
      </Text>
    </HStack>
  );
}

function Muted({ children }: { children: ReactNode }) {
  return (
    <Text color="fg.muted" whiteSpace="nowrap">
      {children}
    </Text>
  );
}
