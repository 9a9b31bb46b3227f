import { Text } from "@chakra-ui/react";
import type { Schemas } from "src/api/client";
import { AppLink, ERROR, StateBadge, stateInWords, Time, Tooltip, TwoLines, WARNING } from "src/components";
import { formatDuration } from "src/format";
import { StageStrip } from "src/pages/Pipelines/StageStrip";
import { airflowDagPath, airflowRunPath, airflowTaskPath } from "src/routes";

type Run = Schemas["LastRun"];

const GOES_ON = new Set(["running", "deferred", "up_for_retry", "up_for_reschedule", "restarting", "awaiting_input"]);

/** How the last run went: its state, when, how long, its stages; of a failed one where and why. */
export function RunCell({ dagId, run, isPaused }: { dagId: string; run: Run | null; isPaused: boolean }) {
  if (run === null) {
    return (
      <TwoLines
        first={<Text color="fg.muted">never run</Text>}
        second={<AppLink to={airflowDagPath(dagId)}>{isPaused ? "unpause it" : "trigger it"}</AppLink>}
      />
    );
  }
  // A run that succeeded, and whose model was refused, says the latter.
  const refused = run.state === "success" ? run.refusals[0]?.verdict : undefined;
  return (
    <TwoLines
      first={
        <>
          <AppLink
            to={airflowRunPath(dagId, run.run_id)}
            title={run.run_id}
            aria-label={`Run ${run.run_id}: ${refused ?? stateInWords(run.state)}`}
          >
            <StateBadge state={refused ? "refused" : run.state}>{refused}</StateBadge>
          </AppLink>
          <Text truncate>
            <Time at={run.ended_at ?? run.started_at ?? run.run_after} />
          </Text>
        </>
      }
      second={
        <>
          <StageStrip stages={run.stages} width={run.state === "success" && !refused ? "140px" : "84px"} />
          <Second dagId={dagId} run={run} />
        </>
      }
    />
  );
}

const reasonOf = ({ task_id, why }: { task_id: string; why: string | null }) =>
  `${task_id}: ${why || "It gave no reason; see its log."}`;

function Second({ dagId, run }: { dagId: string; run: Run }) {
  const all = run.failure ? [run.failure] : run.refusals;
  const [told, ...more] = all;
  if (told) {
    const { task_id, map_index, iteration, why } = told;
    const task = { dag_id: dagId, run_id: run.run_id, task_id, map_index, iteration };
    const color = run.failure ? ERROR : WARNING;
    return (
      <Tooltip content={<Text whiteSpace="pre-wrap">{all.map(reasonOf).join("\n")}</Text>}>
        <Text truncate color={color}>
          <AppLink to={airflowTaskPath(task)} color={color} fontWeight="medium">
            {task_id}
          </AppLink>
          {more.length > 0 && ` and ${more.length} more`}
          {why && `: ${why}`}
        </Text>
      </Tooltip>
    );
  }
  const current = run.stages.filter(({ state }) => GOES_ON.has(state)).map(({ task_id }) => task_id);
  if (run.state === "running") {
    const ended = run.stages.filter((stage) => stage.ended === stage.instances).length;
    return (
      <Text truncate title={current.join(", ")}>
        {ended}/{run.stages.length} {current.join(", ")}
      </Text>
    );
  }
  return <Text whiteSpace="nowrap">{formatDuration(run.duration_s)}</Text>;
}
