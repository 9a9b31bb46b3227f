import { Alert, Button } from "@chakra-ui/react";
import { Time } from "src/components/Time";
import type { ValidationEntry } from "src/pages/Schema/queries";

/** Says that a run waits for a person, wherever one is on the page. */
export function DecisionWaits({ validation, onOpen }: { validation: ValidationEntry; onOpen: () => void }) {
  const { question, address } = validation;
  return (
    <Alert.Root status="warning" mb={3} alignItems="center">
      <Alert.Indicator />
      <Alert.Content>
        <Alert.Title>A run is waiting for a decision</Alert.Title>
        <Alert.Description>
          Task {address.task_id} of run {address.run_id} asked <Time at={question?.asked_at} />.
        </Alert.Description>
      </Alert.Content>
      <Button size="sm" onClick={onOpen}>
        Review
      </Button>
    </Alert.Root>
  );
}
