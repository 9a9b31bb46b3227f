import { Box, Button, Heading, HStack, Text } from "@chakra-ui/react";
import { type ReactNode, useState } from "react";
import { queryClient } from "src/api/client";
import { ConfirmDialog, Notice, StateBadge, Time } from "src/components";
import { answer, type Question, type ValidationEntry } from "src/pages/Schema/queries";

const APPROVE = "Approve the proposed schema";
const REJECT = "Reject";

interface Props {
  dagId: string;
  validation: ValidationEntry;
  question: Question;
}

/** What a validation asks, with the answers to choose from; or who answered what, when and why. */
export function QuestionCard({ dagId, validation, question }: Props) {
  const waiting = question.state === "waiting";
  const [choice, setChoice] = useState<string | null>(null);
  const confirm = async (note: string) => {
    try {
      await answer(validation.address, choice ?? "", note);
      setChoice(null);
    } finally {
      await queryClient.invalidateQueries();
    }
  };
  return (
    <Box
      as="section"
      aria-label="Decision"
      borderWidth={1}
      borderInlineStartWidth={4}
      borderColor="border"
      borderInlineStartColor={waiting ? "awaiting_input.solid" : "border.emphasized"}
      borderRadius="md"
      p={4}
      mb={4}
      bg={waiting ? "awaiting_input.subtle" : "bg.subtle"}
    >
      <HStack gap={3} mb={2} wrap="wrap">
        <Heading size="sm">{waiting ? "The run is waiting for a decision" : "Decision"}</Heading>
        <StateBadge state={waiting ? "awaiting_input" : question.state === "closed" ? "removed" : "success"}>
          {BADGES[question.state]}
        </StateBadge>
        <Text fontSize="sm" color="fg.muted">
          asked <Time at={question.asked_at} />
        </Text>
      </HStack>
      {waiting ? (
        <Waiting question={question} onChoose={setChoice} />
      ) : (
        <>
          {choice !== null && (
            <Notice
              status="warning"
              size="sm"
              mb={2}
              title="Your answer was not used: somebody else has answered, or the time is up."
            />
          )}
          <Outcome question={question} runState={validation.run_state} />
        </>
      )}
      {waiting && choice !== null && (
        <ConfirmDialog
          title={`${choice}?`}
          confirmLabel={choice}
          danger={choice === REJECT}
          onConfirm={confirm}
          onClose={() => setChoice(null)}
        >
          <Consequence dagId={dagId} choice={choice} />
        </ConfirmDialog>
      )}
    </Box>
  );
}

const BADGES: Record<Question["state"], string> = {
  waiting: "waiting",
  answered: "answered",
  timed_out: "timed out",
  closed: "not answered",
};

function Outcome({ question, runState }: { question: Question; runState: string }) {
  if (question.state === "closed") {
    return (
      <Text fontSize="sm">
        Nobody answered before the task ended; the run is {runState}. Clear the task to be asked again.
      </Text>
    );
  }
  return (
    <Box fontSize="sm">
      <Text>
        <b>{question.choice}</b>{" "}
        {question.state === "timed_out" ? (
          <>
            was chosen because nobody answered in time, <Time at={question.answered_at} />.
          </>
        ) : (
          <>
            by <b>{question.answered_by}</b>, <Time at={question.answered_at} />.
          </>
        )}
      </Text>
      {question.note && (
        <Text as="blockquote" mt={1} ps={3} borderInlineStartWidth={2} whiteSpace="pre-wrap" wordBreak="break-word">
          {question.note}
        </Text>
      )}
    </Box>
  );
}

function Waiting({ question, onChoose }: { question: Question; onChoose: (option: string) => void }) {
  const options = question.options.filter((option) => option !== APPROVE || !question.schema_changed);
  return (
    <Box fontSize="sm">
      <Text mb={1}>{question.subject}.</Text>
      {question.deadline && (
        <Text mb={1}>
          Without an answer, the choice is <b>{question.default}</b>, <Time at={question.deadline} />.
        </Text>
      )}
      {question.assigned_to.length > 0 && <Text mb={1}>Assigned to {question.assigned_to.join(", ")}.</Text>}
      {question.schema_changed && (
        <Notice
          status="warning"
          size="sm"
          my={2}
          title="The schema has changed since this question was asked, so the proposal can no longer be approved. Clear the task to validate the data against the new schema."
        />
      )}
      {question.may_answer ? (
        <HStack gap={2} mt={3} wrap="wrap">
          {options.map((option) => (
            <Button
              key={option}
              size="sm"
              variant={option === APPROVE ? "solid" : "outline"}
              colorPalette={option === APPROVE ? "brand" : option === REJECT ? "danger" : "gray"}
              onClick={() => onChoose(option)}
            >
              {option}
            </Button>
          ))}
        </HStack>
      ) : (
        <Text color="fg.muted" mt={2}>
          You do not have permission to answer.
        </Text>
      )}
    </Box>
  );
}

function Consequence({ dagId, choice }: { dagId: string; choice: string }) {
  const told: Record<string, ReactNode> = {
    [APPROVE]: (
      <>
        The proposed schema becomes the schema of <b>{dagId}</b>, for this run and all later ones, and the run goes on.
        The previous version is kept.
      </>
    ),
    [REJECT]: <>The task fails without a retry, and so do the tasks that depend on it. The schema does not change.</>,
  };
  return (
    <Text fontSize="sm">
      {told[choice] ?? (
        <>The run continues with this data and the current schema. The next run with the same anomalies asks again.</>
      )}
    </Text>
  );
}
