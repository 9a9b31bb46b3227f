import { Box, Group, HStack, IconButton, Stack, Text } from "@chakra-ui/react";
import { LuChevronLeft, LuChevronRight } from "react-icons/lu";
import { useSkewReport } from "src/api/skew";
import { AppLink, ERROR, ErrorAlert, LinesAlert, StateBadge, Time } from "src/components";
import { formatList, formatNumber } from "src/format";
import type { Check, Decision } from "src/pages/Skew/timeline";
import {
  decisionLabel,
  decisionLines,
  formatEffect,
  toldInWords,
  VERDICT_STATES,
  VERDICTS,
} from "src/pages/Skew/words";
import { airflowRunPath, airflowTaskPath, lineagePath, refOf } from "src/routes";

interface Props {
  check: Check;
  /** Shows the comparison before; absent at the first. */
  onOlder?: () => void;
  onNewer?: () => void;
}

/** What one comparison came to: verdict, rows, versions, decision, and what could not be done. */
export function CheckSummary({ check, onOlder, onNewer }: Props) {
  const { decision } = check;
  const report = useSkewReport(check, { features: false });
  const versions = Object.keys(check.versions);
  const reference =
    check.version === null ? "the reference span" : `the training data of ${check.model} v${check.version}`;
  return (
    <Stack gap={1} fontSize="sm" borderWidth={1} borderRadius="md" p={3}>
      <HStack gap={2} wrap="wrap">
        <StateBadge state={VERDICT_STATES[check.verdict] ?? check.verdict}>
          {check.verdict.replaceAll("_", " ")}
        </StateBadge>
        <Text fontWeight="medium">
          <Window check={check} />
        </Text>
        <Text color="fg.muted">
          compared <Time at={check.at} />
        </Text>
        <HStack gap={3} marginInlineStart="auto" wrap="wrap">
          <Group attached>
            {[
              { label: "Older comparison", go: onOlder, icon: <LuChevronLeft /> },
              { label: "Newer comparison", go: onNewer, icon: <LuChevronRight /> },
            ].map(({ label, go, icon }) => (
              <IconButton key={label} size="2xs" variant="outline" aria-label={label} disabled={!go} onClick={go}>
                {icon}
              </IconButton>
            ))}
          </Group>
          <AppLink to={airflowRunPath(check.dag_id, check.run_id)}>DAG run</AppLink>
          <AppLink to={airflowTaskPath(check)}>Task</AppLink>
          <AppLink to={lineagePath(check.dag_id, { artifact: refOf(check) })}>Lineage</AppLink>
        </HStack>
      </HStack>
      <Text color="fg.muted">
        {VERDICTS[check.verdict]} {formatNumber(check.rows_current)} rows against {formatNumber(check.rows_reference)}{" "}
        of {reference}
        {check.verdict === "insufficient" && `; ${formatNumber(check.min_rows)} are needed`}
        {versions.length > 0 && `; answered by ${versions.map((version) => `v${version}`).join(", ")}`}.
      </Text>
      {decision && <DecisionSummary decision={decision} />}
      <ErrorAlert error={report.error} />
      {report.data?.row_skew && (
        <Text color="fg.muted">
          Row by row: {formatNumber(report.data.row_skew.skewed_pairs)} of {formatNumber(report.data.row_skew.pairs)}{" "}
          rows joined by {report.data.row_skew.identifiers.join(", ")} differ
          {check.skewed.length > 0 && `, in ${formatList(check.skewed)}`}.
        </Text>
      )}
      {check.lost.length > 0 && <Text color={ERROR}>Without values now: {formatList(check.lost)}.</Text>}
      {report.data && report.data.unmatched.length > 0 && (
        <Text color="fg.muted">On one side only, and therefore not compared: {formatList(report.data.unmatched)}.</Text>
      )}
      {report.data?.prediction_current !== null && report.data?.prediction_current !== undefined && (
        <Text color="fg.muted">
          Mean prediction {formatEffect(report.data.prediction_current, check.problem)},{" "}
          {formatEffect(report.data.prediction_reference, check.problem)} with the reference's values.
        </Text>
      )}
      <LinesAlert lines={report.data?.notes ?? []} />
    </Stack>
  );
}

function Window({ check }: { check: Check }) {
  if (check.window_end === null) {
    return (
      <>
        Requests until <Time at={check.captured_until ?? check.at} exact />
      </>
    );
  }
  return (
    <>
      Data {check.window_start && <Time at={check.window_start} exact />}
      {check.window_start ? " to " : "until "}
      <Time at={check.window_end} exact />
    </>
  );
}

/** What was decided after a comparison, and how each condition of the policy stood. */
function DecisionSummary({ decision }: { decision: Decision }) {
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
