import { Box, Text } from "@chakra-ui/react";
import { AppLink } from "src/components/AppLink";
import { Time } from "src/components/Time";
import type { Decision } from "src/pages/Skew/timeline";
import { decisionLabel, decisionLines, toldInWords } from "src/pages/Skew/words";
import { airflowRunPath } from "src/routes";

/** What was decided after a comparison, and how each condition of the policy stood. */
export function DecisionSummary({ decision }: { decision: Decision }) {
  const lines = decisionLines(decision);
  return (
    <Box>
      <Text lineClamp={3} title={decision.reason ?? undefined}>
        <b>{decisionLabel(decision)}</b>
        {decision.started.map((run) => (
          <span key={run.run_id}>
            {" → "}
            <AppLink to={airflowRunPath(run.dag_id, run.run_id)}>{run.dag_id} run</AppLink>
          </span>
        ))}
        {decision.reason && `: ${decision.reason}`}
      </Text>
      {decision.outcome === "requested" && decision.window_end && (
        <Text color="fg.muted">
          To learn from {decision.window_start ? <Time at={decision.window_start} exact /> : "the pipeline's own start"}{" "}
          to <Time at={decision.window_end} exact />
        </Text>
      )}
      {toldInWords(decision) && <Text color="fg.muted">{toldInWords(decision)}</Text>}
      {lines.length > 0 && (
        <Box as="ul" aria-label="Conditions" listStyleType="none" color="fg.muted" fontSize="xs">
          {lines.map((line) => (
            <li key={line}>{line}</li>
          ))}
        </Box>
      )}
    </Box>
  );
}
