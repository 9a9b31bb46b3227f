import { Box, Flex, HStack, Stack, Text } from "@chakra-ui/react";
import { useState } from "react";
import type { Schemas } from "src/api/client";
import { PlainTable } from "src/components/PlainTable";
import { StateBadge } from "src/components/StateBadge";
import { Time } from "src/components/Time";
import { formatCount, formatDuration, formatNumber, formatPValue } from "src/format";
import { DecisionTitle } from "src/pages/Models/DecisionTitle";
import type { Decision } from "src/pages/Models/queries";
import { type Group, OUTCOMES, stepsOf, titleOfGroup } from "src/pages/Models/rollouts";
import { versionPalette } from "src/pages/Models/versions";
import { askedInWords, titleOf } from "src/pages/Models/words";

const STEP_PX = 72;
/** A canary from its deployment to its end: each step with its share, what was counted, and how it was judged. */
export function RolloutCard({ events }: { events: Group }) {
  const [newest] = events;
  const steps = stepsOf(events);
  const [chosen, setChosen] = useState<string | null>(null);
  const shown = steps.find(({ at }) => at === chosen) ?? steps.at(-1);
  const others = events.filter((event) => event.canary === null && event !== newest);
  return (
    <Box borderWidth={1} borderRadius="md" p={3}>
      <DecisionTitle title={titleOfGroup(events)} at={newest.at} by={newest.by} />
      {steps.length === 0 && <Text fontSize="sm">{newest.why}</Text>}
      {steps.length > 0 && (
        <Flex gap={2} mt={3} align="stretch" overflowX="auto">
          {steps.map((step) => (
            <Step key={step.at} step={step} chosen={step === shown} onChoose={() => setChosen(step.at)} />
          ))}
        </Flex>
      )}
      {shown && <Findings step={shown} />}
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

function Step({ step, chosen, onChoose }: { step: Decision; chosen: boolean; onChoose: () => void }) {
  return (
    <Box
      as="button"
      onClick={onChoose}
      aria-pressed={chosen}
      textAlign="start"
      borderWidth={1}
      borderColor={chosen ? "brand.solid" : "border"}
      borderRadius="md"
      px={3}
      py={2}
      minW="44"
      cursor="pointer"
      _hover={{ bg: "bg.subtle" }}
    >
      <HStack align="flex-end" gap={3}>
        <Flex height={`${STEP_PX}px`} width="6" bg="bg.muted" borderRadius="sm" align="flex-end" overflow="hidden">
          <Box
            width="full"
            height={`${step.percent ?? 0}%`}
            colorPalette={versionPalette(step.version)}
            bg="colorPalette.solid"
          />
        </Flex>
        <Box fontSize="xs" lineHeight="1.5">
          <Text fontSize="md" fontWeight="semibold">
            {step.percent}%
          </Text>
          <Text color="fg.muted">{askedInWords(step.canary)}</Text>
          <Text color="fg.muted">p99 {formatNumber(step.canary?.latency_ms_p99, 3)} ms</Text>
          <StateBadge state={stateOf(worstOf(step.findings))} size="xs" mt={1}>
            {OUTCOMES[step.event] ?? "passed"}
          </StateBadge>
        </Box>
      </HStack>
    </Box>
  );
}

const STATES: Record<string, string> = {
  ok: "ok",
  doubt: "warning",
  unknown: "warning",
  bad: "failed",
  not_judged: "not judged",
};

const stateOf = (verdict: string): string => STATES[verdict] ?? "warning";

/** The verdict that decides; not judged is a step of which nothing was. */
function worstOf(findings: readonly Schemas["CanaryFinding"][]): string {
  const verdicts = findings.map(({ verdict }) => verdict);
  return (
    (["bad", "doubt", "unknown", "ok", "not_judged"] as const).find((verdict) => verdicts.includes(verdict)) ?? "ok"
  );
}

const NAMES: Record<string, string> = {
  errors: "Errors",
  refusals: "Refused requests",
  latency_p50: "Latency p50",
  latency_p99: "Latency p99",
  predictions: "Predictions",
  labels: "Loss on labelled rows",
};

function Findings({ step }: { step: Decision }) {
  if (step.findings.length === 0) {
    return (
      <Text fontSize="sm" mt={2}>
        {step.reasons.join("; ") || step.why}
      </Text>
    );
  }
  return (
    <PlainTable
      label={`What was compared at ${step.percent}%`}
      mt={3}
      rows={step.findings}
      rowKey={({ what, text }) => `${what} ${text}`}
      columns={[
        { label: `At ${step.percent}%`, cell: ({ what }) => <Text whiteSpace="nowrap">{NAMES[what] ?? what}</Text> },
        {
          label: "Verdict",
          cell: ({ verdict }) => (
            <StateBadge state={stateOf(verdict)} size="xs">
              {verdict.replaceAll("_", " ")}
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
