import { Box, Button, Heading, HStack, Text } from "@chakra-ui/react";
import { useState } from "react";
import { ConfirmDialog, QueryView, Time } from "src/components";
import { Comparison } from "src/pages/Schema/Comparison";
import {
  decide,
  type ProposalReview,
  useProposal,
  useReview,
  type ValidationEntry,
  type ValidationReport,
} from "src/pages/Schema/queries";
import type { ArtifactRef } from "src/routes";

/** The schema that a validation proposes: what it changes, and, where no task asks, what is decided on it. */
export function Proposal({ validation, report }: { validation: ValidationEntry; report: ValidationReport }) {
  const { address, question } = validation;
  const proposal = useProposal(address, report.has_proposal);
  const asked = question !== null && question.state !== "closed";
  const review = useReview(address, report.has_proposal && !asked);
  if (report.anomalies.length === 0) {
    return null;
  }
  const { schema_version: version } = report;
  return (
    <Box as="section" aria-label="Proposed schema" mt={6}>
      <Heading size="sm" mb={1}>
        Proposed schema
      </Heading>
      {report.has_proposal ? (
        <>
          <Text fontSize="sm" color="fg.muted" mb={3}>
            The smallest change to the schema under which this data has no anomalies.
            {!asked && (
              <>
                {" "}
                The next run uses it once it is approved. To make a run wait for the decision, set{" "}
                <code>on_anomaly="ask"</code> on the task <code>{address.task_id}</code>.
              </>
            )}
          </Text>
          {!asked && <QueryView query={review}>{(found) => <Review address={address} review={found} />}</QueryView>}
          <QueryView query={proposal}>
            {(comparison) => (
              <Comparison
                comparison={comparison}
                before={version ? `version ${version}` : "the schema at that time"}
                after="proposed"
              />
            )}
          </QueryView>
        </>
      ) : (
        <Text fontSize="sm" color="fg.muted">
          No change to the schema would make this data valid.
        </Text>
      )}
    </Box>
  );
}

function Review({ address, review }: { address: ArtifactRef; review: ProposalReview }) {
  const [choice, setChoice] = useState<"approve" | "reject" | null>(null);
  const [seen, setSeen] = useState(review);
  const choose = (chosen: typeof choice) => {
    setSeen(review);
    setChoice(chosen);
  };
  const close = () => setChoice(null);
  return (
    <Box mb={4} fontSize="sm">
      {review.decisions.map(({ choice, by, at, note, version }) => (
        <Text key={`${at} ${by}`} mb={1} wordBreak="break-word">
          <b>{choice}</b> by <b>{by}</b>, <Time at={at} />
          {version === null ? "" : `, as version ${version}`}: {note}
        </Text>
      ))}
      {review.closed !== null && review.decisions.length === 0 && (
        <Text color="fg.muted">You cannot decide on it here: {review.closed}.</Text>
      )}
      {review.may_decide && (
        <HStack gap={2} wrap="wrap">
          <Button size="sm" colorPalette="brand" onClick={() => choose("approve")}>
            Approve
          </Button>
          <Button size="sm" variant="outline" colorPalette="danger" onClick={() => choose("reject")}>
            Reject
          </Button>
        </HStack>
      )}
      {review.closed === null && !review.may_decide && (
        <Text color="fg.muted">Only users with permission to trigger this pipeline can decide.</Text>
      )}
      {choice !== null && (
        <ConfirmDialog
          title={choice === "approve" ? "Approve the proposed schema?" : "Reject the proposed schema?"}
          confirmLabel={choice === "approve" ? "Approve" : "Reject"}
          danger={choice === "reject"}
          onConfirm={(reason) => decide(address, choice, reason, seen)}
          onClose={close}
        >
          <Text fontSize="sm">
            {choice === "approve"
              ? "All later runs use this schema. The previous version is kept, and this run does not change."
              : "The schema does not change. This page shows who rejected the proposal, and why."}
          </Text>
        </ConfirmDialog>
      )}
    </Box>
  );
}
