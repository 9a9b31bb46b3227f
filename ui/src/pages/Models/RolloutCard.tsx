import { Box, HStack, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { LuChevronDown, LuChevronUp } from "react-icons/lu";
import { PlainTable, StateBadge, Time } from "src/components";
import { formatCount, formatDuration, formatNumber, formatPValue } from "src/format";
import { DecisionTitle } from "src/pages/Models/DecisionTitle";
import { findingName, findingsInWords, stateOf, verdictOf, worstOf } from "src/pages/Models/findings";
import type { Decision } from "src/pages/Models/queries";
import { type Group, OUTCOMES, stepsOf, titleOfGroup } from "src/pages/Models/rollouts";
import { askedInWords, titleOf } from "src/pages/Models/words";

/** A canary from its deployment to its end: each step in a line, with its tests on demand. */
export function RolloutCard({ events }: { events: Group }) {
  const [newest] = events;
  const steps = stepsOf(events);
  const others = events.filter((event) => event.canary === null && event !== newest);
  return (
    <Box borderWidth={1} borderRadius="md" p={3}>
      <DecisionTitle title={titleOfGroup(events)} at={newest.at} by={newest.by} />
      {steps.length === 0 && <Text fontSize="sm">{newest.why}</Text>}
      <Stack gap={1} mt={2}>
        {steps.map((step) => (
          <Step key={step.at} step={step} />
        ))}
      </Stack>
      {others.length > 0 && (
        <Stack gap={0} mt={3} fontSize="xs" color="fg.muted">
          {others.map((event) => (
            <Text key={`${event.at} ${event.event}`}>
              <Time at={event.at} exact /> {titleOf(event)}: {event.why}
              {event.by?.user && ` (${event.by.user})`}
            </Text>
          ))}
        </Stack>
      )}
    </Box>
  );
}

function Step({ step }: { step: Decision }) {
  const [open, setOpen] = useState(false);
  const { findings, percent, canary } = step;
  const counted = `${askedInWords(canary)}, p99 ${formatNumber(canary?.latency_ms_p99, 3)} ms`;
  return (
    <Box>
      <HStack
        gap={2}
        wrap={{ base: "wrap", md: "nowrap" }}
        align="baseline"
        fontSize="sm"
        {...(findings.length > 0 && {
          as: "button",
          onClick: () => setOpen(!open),
          "aria-expanded": open,
          textAlign: "start",
          cursor: "pointer",
          _hover: { bg: "bg.subtle" },
        })}
      >
        <StateBadge state={worstOf(findings)} size="sm">
          {OUTCOMES[step.event] ?? "passed"} at {percent}%
        </StateBadge>
        <Text>{findingsInWords(findings) || step.reasons.join("; ") || step.why}</Text>
        <Text color="fg.muted" flexShrink={0}>
          {counted}
        </Text>
        {findings.length > 0 && (open ? <LuChevronUp aria-hidden /> : <LuChevronDown aria-hidden />)}
      </HStack>
      {open && <Findings step={step} />}
    </Box>
  );
}

function Findings({ step }: { step: Decision }) {
  return (
    <PlainTable
      label={`What was compared at ${step.percent}%`}
      mt={1}
      rows={step.findings}
      rowKey={({ what, text }) => `${what} ${text}`}
      columns={[
        { label: `At ${step.percent}%`, cell: ({ what }) => <Text whiteSpace="nowrap">{findingName(what)}</Text> },
        {
          label: "Verdict",
          cell: (finding) => (
            <StateBadge state={stateOf(finding)} size="xs">
              {verdictOf(finding)}
            </StateBadge>
          ),
        },
        {
          label: "p-value",
          end: true,
          cell: ({ numbers }) => formatPValue(pValueOf(numbers)).replace("p = ", "").replace("p < ", "< "),
        },
        {
          label: `Finding after ${formatDuration(step.watched_s)}, compared with ${formatCount(step.stable?.requests)} requests to the stable version`,
          cell: ({ text }) => text,
        },
      ]}
    />
  );
}

function pValueOf(numbers: Readonly<Record<string, unknown>>): number | null {
  const value = numbers.p_value ?? numbers.ks_p_value;
  return typeof value === "number" ? value : null;
}
