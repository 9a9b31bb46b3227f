import { Button } from "@chakra-ui/react";
import { Notice } from "src/components/Notice";
import { Time } from "src/components/Time";
import type { ValidationEntry } from "src/pages/Schema/queries";

/** Says that a run waits for a person, wherever one is on the page. */
export function DecisionWaits({ validation, onOpen }: { validation: ValidationEntry; onOpen: () => void }) {
  const { question, address } = validation;
  return (
    <Notice
      status="warning"
      mb={3}
      alignItems="center"
      title="A run is waiting for a decision"
      action={
        <Button size="sm" onClick={onOpen}>
          Review
        </Button>
      }
    >
      Task {address.task_id} of run {address.run_id} asked <Time at={question?.asked_at} />.
    </Notice>
  );
}
