import { Box, Drawer, Heading, List, Stack, Text } from "@chakra-ui/react";
import {
  CodeBlock,
  type Column,
  column,
  DataTable,
  formatDuration,
  formatTime,
  intervalInWords,
  numberColumn,
  SideDrawer,
  Time,
  useTimezone,
} from "airflow-hops";
import { useMemo } from "react";
import { outcomeInWords, trainedOn } from "src/extensions/replay/chartOption";
import { decisionsOf, type Policy, type Report, retrainingAt } from "src/extensions/replay/report";

type Decision = Policy["decisions"][number];

interface Props {
  report: Report;
  policy: Policy;
  chosen: boolean;
  at: string | null;
  onAt: (at: string) => void;
  onClose: () => void;
}

/** A policy of a back-test: its decisions with their reasons, and one of them with the candidate that came of it. */
export function PolicyDrawer({ report, policy, chosen, at, onAt, onClose }: Props) {
  const columns = useMemo(() => columnsFor(policy), [policy]);
  const decisions = useMemo(() => decisionsOf(policy), [policy]);
  const decision = decisions.find((each) => each.at === at);
  return (
    <SideDrawer
      onClose={onClose}
      header={
        <Stack gap={0}>
          <Drawer.Title>{policy.name}</Drawer.Title>
          <Text fontSize="sm" color="fg.muted">
            {chosen && "Earns most at this price. "}
            {policy.label_delay_s !== null && `Labels come ${formatDuration(policy.label_delay_s)} after their rows.`}
          </Text>
        </Stack>
      }
    >
      <Stack gap={4}>
        {decision && <Decided report={report} policy={policy} decision={decision} />}
        {decisions.length > 0 ? (
          <DataTable
            label="Decisions"
            name="decisions"
            rows={decisions}
            rowKey={(each) => each.at}
            columns={columns}
            onOpen={(each) => onAt(each.at)}
            opened={at}
            maxHeight="50vh"
          />
        ) : (
          <Text color="fg.muted">It decides nothing, and trains nothing.</Text>
        )}
        {policy.policy && <CodeBlock code={JSON.stringify(policy.policy, null, 1)} label="policy" maxHeight="240px" />}
      </Stack>
    </SideDrawer>
  );
}

function Decided({ report, policy, decision }: { report: Report; policy: Policy; decision: Decision }) {
  const zone = useTimezone();
  const retraining = retrainingAt(policy, decision.at);
  const candidate = retraining && report.candidates[retraining.candidate];
  const day = (at: number | string) => formatTime(at, zone).slice(0, 10);
  return (
    <Box borderStartWidth={4} borderColor={retraining?.promoted ? "success.solid" : "border.emphasized"} ps={3}>
      <Heading as="h3" size="sm">
        <Time at={decision.at} exact /> · {retraining ? outcomeInWords(retraining) : outcomeOf(decision)}
      </Heading>
      <Text fontSize="sm" overflowWrap="anywhere">
        {decision.reason}
      </Text>
      {retraining && candidate && (
        <>
          <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
            Candidate {retraining.candidate}, trained on {trainedOn(report, retraining.candidate, day)} in{" "}
            {formatDuration(candidate.core_s)} of CPU time{candidate.cached && ", by an earlier back-test"}:{" "}
            {candidate.model}
          </Text>
          {retraining.gate.length > 0 && (
            <List.Root ps={4} mt={1} fontSize="sm" color="fg.muted" aria-label="The gate's reasons">
              {retraining.gate.map((reason) => (
                <List.Item key={reason}>{reason}</List.Item>
              ))}
            </List.Root>
          )}
        </>
      )}
    </Box>
  );
}

/** Of a decision without a training: why it was refused; at the end of the history, what is requested is not trained. */
const outcomeOf = ({ requested, why }: Decision): string => (requested ? "requested at the end" : why);

function columnsFor(policy: Policy): Column<Decision>[] {
  const kind = (decision: Decision) => {
    const retraining = decision.requested ? retrainingAt(policy, decision.at) : undefined;
    return retraining ? (retraining.promoted ? "promoted" : "rejected") : outcomeOf(decision);
  };
  return [
    column("at", "At", { fixed: true, width: 170, value: ({ at }) => at, render: ({ at }) => <Time at={at} exact /> }),
    { key: "outcome", label: "Outcome", width: 130, value: kind },
    numberColumn("gain", "Gain", ({ at }) => retrainingAt(policy, at)?.gain?.[0], {
      help: "By how much the candidate was better than the model before it; above 0 is better, whatever the metric",
      width: 200,
      render: ({ at }) => intervalInWords(retrainingAt(policy, at)?.gain, 3),
    }),
    column("reason", "Reason", {
      width: 340,
      value: ({ reason }) => reason,
      render: ({ reason }) => <span title={reason}>{reason}</span>,
    }),
  ];
}
